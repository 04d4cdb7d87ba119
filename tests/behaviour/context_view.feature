Feature: The context view: what the model would see now, and what it saw for an answer
  Each message of a conversation is told with what becomes of it and why. No model is called for that.

  Background:
    Given a model with a window of 8,192 tokens
    And the policy "additive" with:
      | recall        | off |
      | prepare_ratio | 1   |

  Scenario: A short conversation would be sent as it is
    Given the user has said "The password of the shed is swordfish."
    When the user looks at what would be sent now
    Then it would be "full"
    And message 0 would be shown as "verbatim"
    And the model has been asked 1 times

  Scenario: A long conversation says which summary stands for a message
    Given the user has said "The password of the shed is swordfish."
    And the conversation has been summarized 2 times, by turns of 300 tokens
    When the user looks at what would be sent now
    Then it would be "summarized"
    And message 0 would be shown as "summarized", because "a summary stands for it"
    And the newest message would be shown as "verbatim"
    And it would weigh at most 5,734 tokens

  Scenario: The same conversation is looked at with the eyes of a larger model
    Given the model "large" with a window of 128,000 tokens
    And the conversation has been summarized 2 times, by turns of 300 tokens
    When the user looks at what the model "large" would be sent now
    Then it would be "full"
    And message 0 would be shown as "verbatim"

  Scenario: What the model saw for an earlier answer does not change
    Given the user has said "The password of the shed is swordfish."
    And the conversation has been summarized 1 times, by turns of 300 tokens
    When the user looks at what the model saw for its first answer
    Then it was "full"
    And it is what was really sent
    When the user looks at what the model saw for its last answer
    Then it was "summarized"
    And it is what was really sent
    And each message that was sent says which messages of the log it stands for
