Feature: Conversations: begun, found, described and deleted by their client
  A conversation is a resource. Chat completions that name it send new messages only and go on where it ends.

  Background:
    Given a model with a window of 2,000 tokens
    And the policy "additive" with:
      | recall | off |

  Scenario: A conversation that was begun by hand goes on in chat completions
    When the user begins a conversation with the items:
      | role      | content           |
      | system    | Answer briefly.   |
      | user      | The code is 7741. |
      | assistant | Noted.            |
    And the user says "What is the code?" in the conversation that was begun
    Then the model saw the messages "Answer briefly. | The code is 7741. | Noted. | What is the code?"
    And the answer names the conversation that was begun

  Scenario: A conversation that was begun empty grows beyond the window
    When the user begins an empty conversation
    And the user says something of 120 tokens 20 times in the conversation that was begun
    Then the answer says "summarized"
    And the items of the conversation are 40 messages, in order, with summaries among them

  Scenario: A conversation is found by what its client wrote on it
    When the user begins a conversation with the metadata "topic=archive"
    And the user begins a conversation with the metadata "topic=garden"
    Then the list of conversations with "topic=garden" holds the newest one only
    And the list of conversations holds 2, the newest first

  Scenario: What is written on a conversation can be changed
    When the user begins a conversation with the metadata "topic=archive"
    And the user describes the conversation with "topic=garden"
    Then the list of conversations with "topic=archive" is empty
    And the list of conversations with "topic=garden" holds the newest one only

  Scenario: A deleted conversation is gone
    When the user begins an empty conversation
    And the user says "Keep this." in the conversation that was begun
    And the user deletes the conversation that was begun
    Then the list of conversations is empty
    And asking in the conversation that was begun is refused with status 404 and the code "conversation_not_found"
