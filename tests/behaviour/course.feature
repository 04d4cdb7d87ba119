Feature: The course of a conversation: its answers in numbers, its log by place, its family of branches
  What the console draws is told to any client that may read the conversation.

  Background:
    Given a model with a window of 8,192 tokens
    And the policy "additive" with:
      | recall        | off |
      | prepare_ratio | 1   |

  Scenario: Each answer says what was sent and what would have been
    Given the user has said "The password of the shed is swordfish."
    And the conversation has been summarized 2 times, by turns of 300 tokens
    When the user looks at the turns of the conversation
    Then there is a turn for each answer
    And turn 1 was "full" and saved nothing
    And the last turn was "summarized" and saved tokens
    And no turn was sent more than 5,734 tokens

  Scenario: The turns come page by page
    Given the conversation has been summarized 1 times, by turns of 300 tokens
    When the user looks at the turns of the conversation, 5 at a time
    Then there is a turn for each answer

  Scenario: A message is read at its place, with the summary that covers it
    Given the user has said "The password of the shed is swordfish."
    And the conversation has been summarized 1 times, by turns of 300 tokens
    When the user reads the log from message 0
    Then message 0 of the log says "The password of the shed is swordfish."
    And a summary covers message 0 of the log

  Scenario: Of a deleted message only its place is told
    Given the user has said "The password of the shed is swordfish."
    When the user takes out the first item
    And the user reads the log from message 0
    Then message 0 of the log says nothing
    And "swordfish" is nowhere in what was told

  Scenario: A conversation knows its branches
    Given the user has said "The password of the shed is swordfish."
    And the user has said "And that of the boat?"
    When the user asks the last question in other words: "Whose boat was it?"
    And the user looks at the branches of the conversation
    Then there are 2 branches
    And the newest is called "Whose boat was it?" and left the other at message 2

  Scenario: Nobody is told of what others said
    Given the user has said "The password of the shed is swordfish."
    When somebody else reads its turns, its log and its branches
    Then each time there is no such conversation
