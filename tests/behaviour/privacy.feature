Feature: Privacy: what is kept can be put under a key, need not be kept, and does not stay for ever

  Background:
    Given a model with a window of 8,192 tokens
    And conversations are kept in SQLite

  Scenario: Nothing that was said can be read in the database
    Given what is kept is encrypted with the key "spring"
    When the user says "The password of the shed is swordfish."
    Then the word "swordfish" is nowhere in the database
    When the user says "What was it?"
    Then the model saw the message "The password of the shed is swordfish." word for word

  Scenario: A summary cannot be read either, and still stands for what it covers
    Given what is kept is encrypted with the key "spring"
    And the policy "additive" with:
      | recall        | off |
      | prepare_ratio | 1   |
    When the conversation goes on by turns of 300 tokens until it has been summarized 2 times
    Then the word "Notes" is nowhere in the database
    When the gateway is restarted
    And the user says "Go on."
    Then the answer says "summarized"

  Scenario: The key is changed, and the old one thrown away
    Given what is kept is encrypted with the key "spring"
    And the user has said "The password of the shed is swordfish."
    When the key is changed to "autumn" and everything is encrypted anew
    And the key "spring" is thrown away
    And the user says "What was it?"
    Then the answer says "full"
    And the word "swordfish" is nowhere in the database
    And nothing in the database is under the key "spring"

  Scenario: Without its key a conversation is not readable, and the client is told why
    Given what is kept is encrypted with the key "spring"
    And the client sends only its new messages, and the name of its conversation
    And the user has said "The password of the shed is swordfish."
    When the key "spring" is lost
    And the user says "What was it?"
    Then the request is refused because the key "spring" is missing

  Scenario: What was kept in plain can be encrypted later
    Given the user has said "The password of the shed is swordfish."
    Then the word "swordfish" is in the database
    When the key is changed to "spring" and everything is encrypted anew
    Then the word "swordfish" is nowhere in the database
    When the user says "What was it?"
    Then the answer says "full"

  Scenario: A turn that is not to be stored leaves nothing behind
    Given the user has said "Hello."
    When the user says "The password of the shed is swordfish." with:
      | store | false |
    Then the word "swordfish" is nowhere in the database

  Scenario: A conversation that has rested for too long is erased
    Given conversations are kept for 30 days
    And the user said "The password of the shed is swordfish." 31 days ago
    When old conversations are erased
    Then the word "swordfish" is nowhere in the database
    When the user says "What was it?"
    Then the conversation is another one

  Scenario: A conversation that has rested for less stays
    Given conversations are kept for 30 days
    And the user said "The password of the shed is swordfish." 29 days ago
    When old conversations are erased
    And the user says "What was it?"
    Then the conversation is still the same
