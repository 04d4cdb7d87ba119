Feature: Erasure: what is erased is gone from the database, and from everything that was made of it

  Background:
    Given a model with a window of 8,192 tokens
    And conversations are kept in SQLite
    And the policy "additive" with:
      | recall        | off |
      | prepare_ratio | 1   |

  Scenario: An erased message is gone from prompts, lists and the database
    Given the user has said "The password of the shed is swordfish."
    And the user has said "Thank you."
    When the first message of the conversation is erased
    And the user says "What was it?"
    Then the model did not see "swordfish"
    And the word "swordfish" is nowhere in the database

  Scenario: The summary that told an erased message is gone, too
    Given the user has said "The password of the shed is swordfish."
    And the conversation has been summarized 1 times, by turns of 300 tokens
    When the user rewrites the first summary as "They spoke of swordfish and of the shed."
    And the first message of the conversation is erased
    And the user says "What was it?"
    Then the model did not see "swordfish"
    And the word "swordfish" is nowhere in the database

  Scenario: A deleted conversation leaves no word behind
    Given the user has said "The password of the shed is swordfish."
    When the conversation is deleted
    Then the word "swordfish" is nowhere in the database
