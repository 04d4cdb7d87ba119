Feature: Strangers: two people of one application are never joined, whatever they share
  A wrong join would show one person's words to another. A conversation too many costs a few tokens.

  Background:
    Given a model with a window of 8,192 tokens
    And the policy "additive" with:
      | recall        | off |
      | prepare_ratio | 1   |
    And a model that gives each conversation answers of its own

  Scenario Outline: Two people who begin with the same words, and are greeted with the same
    Given Ann has a client that <habit>
    And Bob has a client that <habit>
    When Ann says "Hi"
    And Bob says "Hi"
    And Ann says "My secret is 7719."
    And Bob says "I grow beans."
    And Ann asks 3 questions
    And Bob asks 3 questions
    Then the conversations of Ann and Bob are different ones
    And "My secret is 7719." is in no log but that of Ann
    And deleting Ann's conversation with its branches leaves that of Bob

    Examples:
      | habit                                 |
      | resends everything                    |
      | puts a note before its newest message |
      | keeps a window of 5 messages          |
      | replaces what is old by a summary     |

  Scenario Outline: Two people whose clients send the same id for purposes of their own
    Given Ann has a client that <habit>
    And Bob has a client that <habit>
    And each client says in its requests that its prompt_cache_key is the-application
    When Ann says "Hi"
    And Bob says "Hi"
    And Ann says "My secret is 7719."
    And Bob asks 6 questions
    And Ann asks 6 questions
    Then the conversations of Ann and Bob are different ones
    And "My secret is 7719." is in no log but that of Ann

    Examples:
      | habit                                                        |
      | resends everything                                           |
      | keeps a window of 5 messages                                 |
      | keeps its user's messages and replaces the rest by a summary |

  Scenario: A history from elsewhere that ends with a question and an answer which another person got, too
    Given Ann has a client that resends everything
    And Bob has a client that resends everything
    And each client says in its requests that its prompt_cache_key is the-application
    When Ann says "My secret is 7719."
    And Ann says "When are you open?"
    And Bob brings a history of his own that ends as Ann's does
    And Bob asks 2 questions
    Then the conversations of Ann and Bob are different ones
    And Bob has one conversation
    And "My secret is 7719." is in no log but that of Ann

  Scenario: Two people of an application that begins each conversation with the same examples
    Given Ann has a client that resends everything
    And Bob has a client that resends everything
    And the application begins each conversation with the same 5 examples
    When Ann says "My secret is 7719."
    And Bob asks 2 questions
    And Ann asks 2 questions
    Then the conversations of Ann and Bob are different ones
    And Bob has one conversation
    And "My secret is 7719." is in no log but that of Ann
    And Bob's log has every message as it was said, once and in order
    And deleting Ann's conversation with its branches leaves that of Bob

  Scenario: Two end users, though one resends what the other has said
    Given Ann has a client that resends everything
    And Bob has a client that resends everything
    And Ann's client says in its requests that its safety_identifier is ann
    And Bob's client says in its requests that its safety_identifier is bob
    When Ann says "What grows in the shade?"
    And Bob says "What grows in the shade?"
    And Ann asks 2 questions
    And Bob asks 2 questions
    Then the conversations of Ann and Bob are different ones
    And Ann has one conversation
    And Bob has one conversation
