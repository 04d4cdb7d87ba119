Feature: Pins of stored messages
  What was said long ago can be pinned by its item, and is shown word for word again, until it is unpinned.

  Background:
    Given a model with a window of 8,192 tokens
    And the policy "additive" with:
      | recall        | off |
      | prepare_ratio | 1   |

  Scenario: A message that was folded is pinned, and comes back
    Given the user has said "The password of the shed is swordfish."
    And the conversation has been summarized 1 times, by turns of 300 tokens
    When the user pins the stored message 0
    And the user says "Go on."
    Then the model saw the message "The password of the shed is swordfish." word for word
    And its context says:
      | pinned | 1 |

  Scenario: It is unpinned again
    Given the user has said "The password of the shed is swordfish."
    And the conversation has been summarized 1 times, by turns of 300 tokens
    When the user pins the stored message 0
    Then the list of pins names message 0
    When the user unpins the stored message 0
    Then nothing is pinned
    When the user says "Go on."
    Then its context says:
      | pinned | 0 |

  Scenario: With a result its call is pinned too
    Given a turn with a call of "look_up" and a result of 100 tokens, which the gateway has not seen yet
    And the user has said "Go on."
    When the user pins the stored message 2
    Then the list of pins names messages 1 to 2
    When the conversation goes on by turns of 300 tokens until it has been summarized 1 times
    Then the answer says "summarized"
    And the model saw the last result whole, behind its call

  Scenario: Too much cannot be pinned
    Given the user has said something of 5,000 tokens
    When the user pins the stored message 0
    Then that is refused with 400 and the code pins_too_large
