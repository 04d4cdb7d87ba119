Feature: Keys and tenants: who is let in, and that nobody meets anybody else
  In mode "keys" the gateway lets in holders of keys that were made for it, each for one tenant. Whoever shares a tenant
  shares conversations; nobody else ever sees them.

  Scenario: Whoever holds a key of the same tenant goes on with the same conversation
    Given the gateway lets in holders of its own keys only
    And the key "laptop" of "acme"
    And the key "phone" of "acme"
    When the user says "Hello." with the key "laptop"
    And the user says "Where were we?" with the key "phone"
    Then the answers all name the same conversation

  Scenario: Another tenant begins anew, even with the same words
    Given the gateway lets in holders of its own keys only
    And the key "ours" of "acme"
    And the key "theirs" of "globex"
    When the user says "Hello." with the key "ours"
    And the user says "Where were we?" with the key "theirs"
    Then each answer names another conversation

  Scenario: The name of a conversation is of no use to another tenant
    Given the gateway lets in holders of its own keys only
    And the key "ours" of "acme"
    And the key "theirs" of "globex"
    When the user says "Hello." with the key "ours"
    And "theirs" asks for that conversation by its id
    Then the request is refused with 404 and the code conversation_not_found

  Scenario: Without a key nothing is answered
    Given the gateway lets in holders of its own keys only
    When the user says "Hello."
    Then the request is refused with 401 and the code invalid_api_key
    And the model was never asked

  Scenario: A revoked key lets nobody in
    Given the gateway lets in holders of its own keys only
    And the key "lost" of "acme"
    And the key "lost" has been revoked
    When the user says "Hello." with the key "lost"
    Then the request is refused with 401 and the code invalid_api_key
    And the refusal mentions "revoked"
    And the model was never asked

  Scenario: A key can do no more than it was made for
    Given the gateway lets in holders of its own keys only
    And the key "reader" of "acme" with the scopes "read"
    When the user says "Hello." with the key "reader"
    Then the request is refused with 403 and the code insufficient_permissions
    And the refusal mentions "'chat'"
    And the model was never asked

  Scenario: A key may allow certain models only
    Given the gateway lets in holders of its own keys only
    And the key "cheap" of "acme" for the models "small-*"
    When the user says "Hello." with the key "cheap"
    Then the request is refused with 403 and the code insufficient_permissions
    And the model was never asked

  Scenario: A key may bring its own policy
    Given the gateway lets in holders of its own keys only
    And the key "thrifty" of "acme" with the policy "prune"
    When the user says "Hello." with the key "thrifty"
    Then its context says:
      | policy | prune |

  Scenario: End users of one application do not meet either
    Given the gateway keeps end users apart
    When the user says "Hello." with:
      | safety_identifier | anna |
    And the user says "Where were we?" with:
      | safety_identifier | anna |
    Then the answers all name the same conversation
    When the user says "And I?" with:
      | safety_identifier | ben |
    Then the last answer names another conversation than those before
