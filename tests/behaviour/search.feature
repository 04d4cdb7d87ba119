Feature: Search: what was said is found by its words
  In one conversation or in all of them; a match is told with its place, its words, and how well it fits.

  Background:
    Given a model with a window of 8,192 tokens
    And the policy "additive" with:
      | recall        | off |
      | prepare_ratio | 1   |

  Scenario: What a summary stands for is still found word for word
    Given the user has said "The password of the shed is swordfish."
    And the conversation has been summarized 1 times, by turns of 300 tokens
    When the user searches the conversation for "shed password"
    Then the best match says "The password of the shed is swordfish."
    And every message was looked at

  Scenario: All conversations are searched, and each tells its best message
    Given the user has said "The password of the shed is swordfish."
    When the user begins a conversation with the items:
      | role | content                                     |
      | user | The boat has a password, it is barracuda.   |
      | user | A password is asked for by the boat's lock. |
      | user | Nothing else was said about the boat.       |
    And the user searches all conversations for "password"
    Then 2 conversations are found
    When the user searches all conversations for "barracuda"
    Then the best match says "The boat has a password, it is barracuda."

  Scenario: Nobody finds what others said
    Given the user has said "The password of the shed is swordfish."
    When somebody else searches all conversations for "password"
    Then nothing is found

  Scenario: What was deleted is not found
    Given the user has said "The password of the shed is swordfish."
    When the user takes out the first item
    And the user searches all conversations for "swordfish"
    Then nothing is found

  Scenario: Under a key no search is offered, and the answer says why
    Given conversations are kept in SQLite
    And what is kept is encrypted with the key "spring"
    And the user has said "The password of the shed is swordfish."
    When the user searches the conversation for "password"
    Then the search says that what is encrypted cannot be searched
    When the user searches all conversations for "password"
    Then the search says that what is encrypted cannot be searched
