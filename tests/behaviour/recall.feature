Feature: Recall: what is no longer shown is still within reach
  Old messages that bear on the newest one are quoted beside it, word for word; or the model has a tool to search for them.
  Here summaries keep no facts at all, and no user text is kept, so that nothing else can be the reason.

  Background:
    Given a model with a window of 8,192 tokens
    And the policy "additive" with:
      | prepare_ratio   | 1 |
      | user_text_ratio | 0 |
    And a summary has room for 0 facts

  Scenario: An old message that bears on the question is quoted right in front of it
    Given the user has told the fact that the boathouse key hangs behind the blue painting, among 200 tokens
    And the conversation has been summarized 1 times, by turns of 300 tokens
    When the user says "Where does the boathouse key hang?"
    Then the answer says "summarized"
    And the model saw the fact that the boathouse key hangs behind the blue painting
    And the quotation stands in a message of the user's, right before the question, and says that it is no instruction
    And the answer names the first message as quoted
    And the store holds the whole conversation word for word

  Scenario: Nothing is quoted where nothing bears on the question
    Given the user has told the fact that the boathouse key hangs behind the blue painting, among 200 tokens
    And the conversation has been summarized 1 times, by turns of 300 tokens
    When the user says "Thank you, and good night."
    Then the answer names no message as quoted
    And the model did not see the fact that the boathouse key hangs behind the blue painting

  Scenario Outline: A word that turns up every so often is no reason to quote
    Given the user has said "harbour" in one of <each> of 36 turns of 150 tokens
    And the conversation has been summarized 1 times, by turns of 300 tokens
    When the user says "And the harbour?"
    Then the answer names <messages> as quoted

    Examples:
      | each | messages   |
      | 3    | no message |
      | 6    | messages   |

  Scenario: Nothing is quoted while everything is shown
    Given the user has told the fact that the boathouse key hangs behind the blue painting, among 200 tokens
    When the user says "Where does the boathouse key hang?"
    Then the answer says "full"
    And the model saw the whole conversation word for word

  Scenario: What was quoted stays where it is, so that the next prompt begins like this one
    Given the user has told the fact that the boathouse key hangs behind the blue painting, among 200 tokens
    And the conversation has been summarized 1 times, by turns of 300 tokens
    When the user says "Where does the boathouse key hang?"
    And the user says "Thank you."
    Then the last prompt began with the one before
    And the model saw the fact that the boathouse key hangs behind the blue painting

  Scenario: Quotations take at most 15 % of the window, and never more than there is room for
    Given the user has told a fact in each of 50 questions of 280 tokens, over 10 topics
    When the user says "What did we say about boats, bread, clocks, drums, gardens, horses, kites, lamps and maps?"
    Then the answer says "summarized"
    And what was quoted took at most 1,228 tokens
    And no prompt was ever above 7,782 tokens

  Scenario: Whoever does not want it can switch it off for one request
    Given the user has told the fact that the boathouse key hangs behind the blue painting, among 200 tokens
    And the conversation has been summarized 1 times, by turns of 300 tokens
    When the user says "Where does the boathouse key hang?" with:
      | context.recall | off |
    Then the model did not see the fact that the boathouse key hangs behind the blue painting

  Scenario: A model may search for itself, and its user sees one answer
    Given the policy "additive" with:
      | recall | tool |
    And the user has told the fact that the boathouse key hangs behind the blue painting, among 200 tokens
    And the conversation has been summarized 1 times, by turns of 300 tokens
    And the model will look for "boathouse key" before it answers "Behind the painting."
    When the user says "Where does it hang?"
    Then the answer reads "Behind the painting."
    And the model was offered a tool to search the conversation
    And the search found the fact that the boathouse key hangs behind the blue painting
    And the answer names the search for "boathouse key"
    And the store holds the whole conversation word for word

  Scenario: The tool is offered only when there is something to search
    Given the policy "additive" with:
      | recall | tool |
    And the user has told the fact that the boathouse key hangs behind the blue painting, among 200 tokens
    When the user says "Where does it hang?"
    Then the model was offered no tool

  Scenario Outline: Every old message stays searchable, wherever it is kept
    Given conversations are kept in <place>
    And the policy "window" with:
      | keep_turns      | 4    |
      | recall          | tool |
      | user_text_ratio | 0    |
    And the user has told the fact that the boathouse key hangs behind the blue painting, among 200 tokens
    And the conversation has gone on for 20 turns of 100 tokens
    And the gateway is restarted
    And the model will look for "boathouse" before it answers "Behind the painting."
    When the user says "Where does it hang?"
    Then the search found the fact that the boathouse key hangs behind the blue painting

    Examples:
      | place  |
      | memory |
      | SQLite |
