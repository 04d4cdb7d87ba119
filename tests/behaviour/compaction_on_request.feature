Feature: Compaction on request: "compact, and focus on …"
  A conversation can be compacted before it has to be, as far as one wants, and with something to focus on.

  Background:
    Given a model with a window of 32,000 tokens
    And the policy "additive" with:
      | recall          | off |
      | prepare_ratio   | 1   |
      | user_text_ratio | 0   |

  Scenario: What is old is folded now, and the next turns go on from there
    Given the conversation has gone on for 12 turns of 300 tokens
    When the user compacts the conversation, with the focus on "the numbers"
    Then whoever wrote it last was told "the numbers"
    And the conversation weighs less than before
    When the user says "Go on."
    Then the answer says "summarized"
    And the model saw the last 4 turns word for word, the new message, and nothing else but summaries

  Scenario: A dry run says what would become of it
    Given the conversation has gone on for 12 turns of 300 tokens
    When the user asks what a compaction would do
    Then the conversation would weigh less than before
    And no summary was ever asked for
    When the user says "Go on."
    Then the answer says "full"

  Scenario: Only the beginning is folded
    Given the conversation has gone on for 12 turns of 300 tokens
    When the user compacts the conversation through message 7
    And the user says "Go on."
    Then the model saw the last 8 turns word for word, the new message, and nothing else but summaries

  Scenario: A question is not parted from its answer's tool results
    Given a turn with a call of "look_up" and a result of 100 tokens, which the gateway has not seen yet
    And the user has said "Go on."
    When the user compacts the conversation through message 1
    Then that is refused with 400 and the code invalid_value

  Scenario: There is nothing to fold yet
    Given the user has said "Hello."
    When the user compacts the conversation, with the focus on "the numbers"
    Then nothing was compacted, and it says why
    And no summary was ever asked for

  Scenario: Whoever waits sees how far it is
    Given the conversation has gone on for 12 turns of 300 tokens
    When the user compacts the conversation and watches
    Then the user sees that it starts, each summary, and that it is done
