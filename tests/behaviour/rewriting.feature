Feature: Rewriting: clients that change what they resend keep their conversation
  Whatever a client makes of its past, its conversation goes on: the log keeps every message as it was first said, and the model gets what the client sends.

  Background:
    Given a model with a window of 16,000 tokens
    And the policy "additive" with:
      | recall        | off |
      | prepare_ratio | 1   |
    And a model that gives each conversation answers of its own

  Scenario Outline: A client that rewrites its past keeps its conversation
    Given Ann has a client that <habit>
    When Ann asks 9 questions
    Then Ann has one conversation
    And the model saw exactly what the client sent
    And Ann's log has every message as it was said, once and in order
    And every answer said "full"

    Examples:
      | habit                                 |
      | resends everything                    |
      | puts a note before its newest message |
      | keeps a window of 5 messages          |
      | replaces what is old by a summary     |
      | keeps one chunk less of each answer   |

  Scenario Outline: A client that rewrites its past and names its conversation is never left aside
    Given Ann has a client that <habit>
    And each client says in its requests that its conversation is garden
    When Ann asks 9 questions
    Then Ann has one conversation
    And the model saw exactly what the client sent
    And Ann's log has every message as it was said, once and in order
    And every answer said "full"

    Examples:
      | habit                                                        |
      | keeps a window of 5 messages                                 |
      | replaces what is old by a summary                            |
      | keeps its user's messages and replaces the rest by a summary |
      | keeps one chunk less of each answer                          |

  Scenario Outline: An agent that rewrites its past keeps its conversation, and every call its result
    Given Ann has a client that <habit>
    When Ann asks 6 questions that need a tool
    Then Ann has one conversation
    And the model saw exactly what the client sent
    And Ann's log has every message as it was said, once and in order

    Examples:
      | habit                                  |
      | puts a note before its newest message  |
      | masks old tool results                 |
      | drops old tool results and their calls |

  Scenario: Notes that come and go are kept, each where it stood
    Given Ann has a client that puts a note before its newest message
    When Ann asks 4 questions
    Then Ann has one conversation
    And the log has each note once
    And the model saw "It is day 6."
    And the model did not see "It is day 4."

  Scenario: A client's own summary goes on with the conversation that it names
    Given Ann has a client that replaces all answers by a summary
    And each client says in its requests that its conversation is session-7
    When Ann asks 9 questions
    Then Ann has one conversation
    And the model saw exactly what the client sent
    And Ann's log has every message as it was said, once and in order

  Scenario Outline: Another of two answers is taken up
    Given Ann has a client that resends everything
    And Ann has asked <before> questions
    When Ann asks a question and goes on with the second of two answers
    And Ann asks 2 questions
    Then Ann has one conversation
    And the model saw exactly what the client sent
    And Ann's log has every message as it was said, once and in order

    Examples:
      | before |
      | 0      |
      | 5      |

  Scenario: An answer whose beginning the client gave comes back as one message
    Given Ann has a client that resends everything
    And Ann has asked 2 questions
    When Ann asks a question and begins the answer with "First of all, "
    And Ann asks 2 questions
    Then Ann has one conversation
    And the model saw exactly what the client sent
    And Ann's log has every message as it was said, once and in order

  Scenario Outline: Another answer, or another question, is a branch, and the first stays as it was
    Given Ann has a client that <habit>
    And Ann has asked 5 questions
    When Ann wants another answer to the last question
    Then Ann's last answer is in another conversation than those before
    And Ann's log has every message as it was said, once and in order
    When Ann changes the last question to "And what grows in the shade?"
    Then Ann's last answer is in another conversation than those before
    And Ann's log has every message as it was said, once and in order

    Examples:
      | habit                        |
      | resends everything           |

  Scenario: Another answer within a window begins a conversation with the window
    Given Ann has a client that keeps a window of 5 messages
    And Ann has asked 5 questions
    When Ann wants another answer to the last question
    Then Ann's last answer is in another conversation than those before
    And Ann's log ends with what the client sent and its answer
