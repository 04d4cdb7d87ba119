Feature: Portability: conversations come in and go out as chat messages
  Histories of other programs are taken in whole or not at all, and count as answered here: a client goes on with them
  as if it had always talked through the gateway.

  Scenario: A history that was imported is gone on with by naming it
    Given the file "chat.jsonl" with the messages:
      | user      | Where is the key?     |
      | assistant | It hangs on the hook. |
    When the user imports the file
    And the client brings that history
    And the user says "Thank you." with that history in the imported conversation
    Then the answer names the imported conversation
    And the store holds the whole conversation word for word

  Scenario: A client that names the conversation need not bring the history
    Given the file "chat.jsonl" with the messages:
      | system    | Be brief.             |
      | user      | Where is the key?     |
      | assistant | It hangs on the hook. |
    When the user imports the file
    And the user says "Thank you." in the imported conversation
    Then the model saw the messages:
      | system    | Be brief.             |
      | user      | Where is the key?     |
      | assistant | It hangs on the hook. |
      | user      | Thank you.            |

  Scenario: What goes out can come in again
    Given the user has said "Where is the key?"
    And the user has said "And the other one?"
    When the conversation is exported and imported again
    Then the imported conversation has the same messages

  Scenario: A long history is summarized like any other
    Given a model with a window of 8,192 tokens
    And a file with a history of 30 turns of 300 tokens
    When the user imports the file
    And the client brings that history
    And the user says "Go on." with that history in the imported conversation
    Then the answer says "summarized"
    And the answer names the imported conversation

  Scenario: Nothing is kept of a file with a fault, and its place is named
    Given the file "chat.jsonl" with the messages:
      | user  | Where is the key? |
      | robot | On the hook.      |
    When the user imports the file
    Then the file is refused because of "line 2.role"
    And there are no conversations
