Feature: Pins: what a client pins is shown word for word, whatever happens to the rest
  A request names what it pins by its index in `messages`. Pins stay with the conversation.

  Background:
    Given a model with a window of 8,192 tokens
    And the policy "additive" with:
      | recall        | off |
      | prepare_ratio | 1   |

  Scenario: A pinned message survives every summary, word for word
    When the user says "The password of the shed is swordfish." and pins it
    And the conversation goes on by turns of 300 tokens until it has been summarized 2 times
    Then the answer says "summarized"
    And the model saw the message "The password of the shed is swordfish." word for word
    And its context says:
      | pinned | 1 |

  Scenario: An earlier message can be pinned later on, even one that was folded
    Given the user has said "The password of the shed is swordfish."
    And the conversation has been summarized 1 times, by turns of 300 tokens
    When the user says "Go on." and pins message 0
    And the user says "Go on."
    Then the model saw the message "The password of the shed is swordfish." word for word

  Scenario: With a result its call is pinned too
    Given a turn with a call of "look_up" and a result of 100 tokens, which the gateway has not seen yet
    When the user says "Go on." and pins message 2
    And the conversation goes on by turns of 300 tokens until it has been summarized 1 times
    Then the answer says "summarized"
    And the model saw the last result whole, behind its call

  Scenario Outline: A pin holds under every policy
    Given the policy "<policy>"
    When the user says "The password of the shed is swordfish." and pins it
    And the conversation goes on for 40 turns of 300 tokens
    Then the model saw the message "The password of the shed is swordfish." word for word
    And no prompt was ever above 7,782 tokens

    Examples:
      | policy     |
      | additive   |
      | checkpoint |
      | fade       |
      | prune      |
      | window     |

  Scenario: What is not there cannot be pinned
    When the user says "Hello." and pins message 7
    Then the request is refused with 400 and the code invalid_value
