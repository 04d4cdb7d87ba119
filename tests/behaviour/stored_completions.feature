Feature: Stored completions: an answer that is asked to be stored is found again by its id
  With `store: true` a completion is kept as OpenAI keeps it: listed, read with what was asked, described, forgotten.

  Scenario: A completion is found again as it was answered
    When the user says "Where is the key?" with:
      | store          | true |
      | metadata.topic | keys |
    Then its stored completion says what the answer said
    And its stored completion has the metadata:
      | topic | keys |
    And the model was not told to store anything

  Scenario: What was asked is kept with it, instructions included
    Given the instructions "Be brief."
    And the user has said "Where is the key?"
    When the user says "And the other one?" with:
      | store | true |
    Then its stored completion answers:
      | system    | Be brief.          |
      | user      | Where is the key?  |
      | assistant | Noted.             |
      | user      | And the other one? |

  Scenario: Nothing is kept that was not asked for
    When the user says "Where is the key?"
    Then there are no stored completions

  Scenario: A stream is kept as well
    Given answers are stored
    When the user says "Where is the key?" and reads the answer as it comes
    Then its stored completion says what the answer said

  Scenario: What is erased in the conversation is gone from its completions
    When the user says "The password is swordfish." with:
      | store | true |
    And the first message of the conversation is erased
    Then its stored completion answers:
      | user | [erased] |

  Scenario: With its conversation a completion is gone
    When the user says "Where is the key?" with:
      | store | true |
    And the conversation is deleted
    Then there are no stored completions

  Scenario: Forgetting a completion leaves its conversation alone
    When the user says "Where is the key?" with:
      | store | true |
    And its stored completion is deleted
    Then there are no stored completions
    And the store holds the whole conversation word for word
