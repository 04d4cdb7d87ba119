Feature: The staged pipeline: cheap cuts first, then one checkpoint of everything, or fading
  Policy `checkpoint` summarizes; policy `fade` never asks a model. 5 % of the window is a reserve: of 8,192 tokens 7,782
  may be used. Pressure is the share of these that messages take.

  Background:
    Given a model with a window of 8,192 tokens
    And the policy "checkpoint" with:
      | prepare_ratio | 1 |
    And the policy "fade"

  # Budget

  Scenario: A twentieth of the window is kept free, and every answer tells how much of the rest is used
    When the user brings a new conversation that weighs 3,891 tokens
    Then its context says:
      | window        | 8,192 |
      | limit         | 7,782 |
      | prompt_tokens | 3,891 |
      | pressure      | 0.5   |
    And its header X-Context-Tokens says 3,891/7,782

  Scenario: Instructions and tool schemas are counted with each request, once
    Given instructions of 1,000 tokens
    And tool schemas of about 1,000 tokens
    When the conversation goes on for 10 turns of 100 tokens
    Then every estimate was within 5 % of what the provider counted
    And every answer said "full"

  # Calibration

  Scenario Outline: A provider that counts differently is followed
    Given the provider counts <times> times as many tokens as we do
    And instructions of 500 tokens
    When the conversation goes on for 6 turns of 300 tokens
    Then its estimate is within <percent> % of what the provider counted
    When the gateway is restarted
    And the user says something of 300 tokens
    Then its estimate is within <percent> % of what the provider counted

    Examples:
      | times | percent |
      | 1.5   | 5       |
      | 0.8   | 5       |
      | 1.4   | 5       |

  Scenario: A provider that counts twenty times as many tokens teaches no slope
    Given the provider counts 20 times as many tokens as we do
    When the conversation goes on for 3 turns of 100 tokens
    Then the slope is 1

  Scenario Outline: A report that cannot be true is passed over
    Given the provider reports:
      | prompt_tokens     | <reported> |
      | completion_tokens | 2          |
    When the conversation goes on for 5 turns of 300 tokens
    Then the estimate is 1 times what we count ourselves

    Examples:
      | reported |
      | 0        |
      | 3        |
      | 100      |

  Scenario: Input that came from a cache is counted once
    Given the provider reports half of its count as read from its cache
    When the conversation goes on for 6 turns of 300 tokens
    Then the estimate is 1 times what we count ourselves
    And the answer tells that half of its input was read from the cache

  Scenario Outline: What a provider makes of tool schemas is learned beside the messages
    Given tool schemas of about 1,000 tokens
    And the provider counts <times> times as many tokens for tool schemas as we do
    When the conversation goes on for 6 turns of 300 tokens
    Then its estimate is within 5 % of what the provider counted

    Examples:
      | times |
      | 0.5   |
      | 1.3   |
      | 2     |

  Scenario: What was learned of tool schemas is kept through a summary
    Given the policy "checkpoint"
    And tool schemas of about 1,000 tokens
    And the provider counts 1.5 times as many tokens for tool schemas as we do
    When the conversation goes on by turns of 400 tokens until it has been summarized 1 times
    And the user says something of 300 tokens
    Then its estimate is within 5 % of what the provider counted

  # Stage 1

  Scenario Outline: From a pressure of 0.80 on, tool results that were made use of are masked
    Given the policy "<policy>"
    And 6 turns, each with a tool result of 900 tokens, which the gateway has not seen yet
    When the user says so much that the conversation weighs 6,228 tokens
    Then the answer says "full"
    And the model saw the whole conversation word for word
    When the user says "Go on."
    Then the answer says "trimmed"
    And of the results the model saw head and tail, less of the older, at most 2 of them whole
    And every message but results was shown word for word
    And no summary was ever asked for
    And the store holds the whole conversation word for word

    Examples:
      | policy     |
      | checkpoint |
      | fade       |

  Scenario: The newer a result, the more of it is kept where there is room, and one still to be read is kept whole
    Given 9 turns, each with a tool result of 500 tokens, which the gateway has not seen yet
    And a conversation of 1 turns of 1,800 tokens, which the gateway has not seen yet
    And a turn with 1 calls one after the other, each with a result of 600 tokens, not yet answered
    When the model goes on from the last result
    Then the answer says "trimmed"
    And of the results the model saw head and tail, less of the older, at most 4 of them whole
    And the oldest result was cut to 300 to 900 characters
    And the last result was shown word for word
    And every message but results was shown word for word

  Scenario: Where there is no room for more, 300 characters are left of a masked result
    Given the policy "fade"
    And 1 turns, each with a tool result of 900 tokens, which the gateway has not seen yet
    And a conversation of 12 turns of 450 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "trimmed"
    And the oldest result was cut to 325 to 335 characters
    And every message but results was shown word for word

  # Stage 2

  Scenario: One tool result takes at most 30 % of what may be used, 70 % of that its head and 30 % its tail
    When the user goes on after a read result of 7,000 tokens
    Then the answer says "trimmed"
    And the last result was cut to at most 9,334 characters and a line that says what is missing

  Scenario: The arguments of a call take at most 15 %, and remain a JSON object
    Given a turn with a call whose arguments have 40,000 characters, which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "trimmed"
    And each call's arguments were a JSON object of at most 4,750 characters

  # Stage 3

  Scenario: What overflows is left out from the oldest on, calls and their results together
    Given 60 turns, each with a tool result of 150 tokens, which the gateway has not seen yet
    And a conversation of 16 turns of 450 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "trimmed"
    And the prompt was at most 7,782 tokens
    And a line says how many messages are not shown

  # Stage 4

  Scenario Outline: A checkpoint is written when its trigger says so
    Given the policy "checkpoint" with:
      | trigger.type  | <type>  |
      | trigger.value | <value> |
    When the user brings a new conversation that weighs 7,900 tokens
    Then the answer says "<status>"

    Examples:
      | type               | value | status     |
      | null               | null  | summarized |
      | token_ratio        | 0.96  | summarized |
      | token_ratio        | 0.97  | trimmed    |
      | remaining_tokens   | 300   | summarized |
      | remaining_tokens   | 250   | trimmed    |
      | messages_to_refine | 1     | summarized |
      | messages_to_refine | 10    | trimmed    |

  Scenario Outline: A trigger that makes no sense is refused at the start, by the name of what is wrong
    Given the policy "checkpoint" with:
      | trigger.type  | <type>  |
      | trigger.value | <value> |
    Then the gateway does not start, and names "policies.checkpoint.trigger"

    Examples:
      | type         | value |
      | when_i_say   | 1     |
      | token_ratio  | null  |
      | token_ratio  | many  |
      | token_ratio  | -1    |

  Scenario: For the same content a checkpoint is written once
    Given the policy "checkpoint"
    When the user brings a new conversation that weighs 7,900 tokens
    And the user says "Go on."
    And the user says "Go on."
    Then one summary was asked for

  # Stage 5

  Scenario: A checkpoint is written by whoever has just read the conversation, from all of it and un-masked
    Given the policy "checkpoint"
    And the tools "look_up"
    And the instructions "You are a careful clerk."
    And the client says in each request:
      | max_tokens | 2,048 |
    And 3 turns, each with a tool result of 200 tokens, which the gateway has not seen yet
    And a conversation of 17 turns of 390 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "summarized"
    And whoever wrote the summary read the instructions and the conversation as they are, with the tools bound to it
    And whoever writes the summary is told:
      | I want a checkpoint of our work |
      | 1. Goal                         |
      | 2. Constraints                  |
      | 3. Progress                     |
      | 4. Decisions                    |
      | 5. Next steps                   |
      | 6. Verbatim                     |
      | 7. Tool calls                   |

  Scenario: On overflow, too, a checkpoint is written by whoever has just read the conversation
    Given the policy "checkpoint"
    And the tools "look_up"
    And the instructions "You are a careful clerk."
    And the conversation has grown to 7,600 tokens
    When the user says something of 300 tokens
    Then the answer says "summarized"
    And whoever wrote the summary read the instructions and the conversation as they are, with the tools bound to it

  Scenario: Where masked results made it fit, whoever writes a checkpoint reads what the model saw last
    Given the policy "checkpoint"
    And the instructions "You are a careful clerk."
    And 9 turns, each with a tool result of 900 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "trimmed"
    When the user says something of 2,000 tokens
    And the user says something of 2,000 tokens
    And the user says something of 2,000 tokens
    Then the answer says "trimmed"
    When the user says something of 2,000 tokens
    Then the answer says "summarized"
    And the summary was asked for with the first messages of the prompt before, byte for byte

  Scenario Outline: Behind a checkpoint stand the summary, as many turns as are kept, and the new message
    Given the policy "checkpoint" with:
      | keep_turns | <configured> |
    And the instructions "You are a careful clerk."
    When the user brings a new conversation that weighs 7,900 tokens
    Then the answer says "summarized"
    And the model saw one summary
    And the model saw the last <kept> turns word for word, the new message, and nothing else but summaries

    Examples:
      | configured | kept |
      | null       | 2    |
      | 0          | 0    |
      | 1          | 1    |

  Scenario: A second checkpoint is written from the whole conversation again, not from the first
    Given the policy "checkpoint"
    And the user has told the fact that the key is under the mat, among 300 tokens
    When the conversation goes on by turns of 500 tokens until it has been summarized 2 times
    Then whoever writes the summary is told "I do not want that one continued"
    And whoever wrote the last summary read "the key is under the mat" in the conversation itself
    And the model saw one summary
    And the model saw the fact that the key is under the mat

  Scenario Outline: A second checkpoint has a prompt of its own, or that of the first
    Given the policy "checkpoint" with:
      | summarizer.prompt        | <first>  |
      | summarizer.update_prompt | <update> |
    When the conversation goes on by turns of 500 tokens until it has been summarized 2 times
    Then whoever writes the summary is told "<told>"

    Examples:
      | first           | update             | told               |
      | List the doses. | Bring it up to date. | Bring it up to date. |
      | List the doses. | null               | List the doses.    |

  Scenario: When the writer of summaries fails, others are asked in turn
    Given the model "second" with a window of 8,192 tokens
    And the model "third" with a window of 8,192 tokens
    And the policy "checkpoint" with:
      | summarizer.fallbacks | [second, third] |
    And the model "the-model" answers with an error when it is asked for a summary
    And the model "second" answers with nothing when it is asked for a summary
    When the user brings a new conversation that weighs 7,900 tokens
    Then the answer says "summarized"
    And the models "the-model, second, third" were asked for the summary in this order

  Scenario Outline: When nobody can write one, a list of what was said and called stands in
    Given the policy "checkpoint"
    And whoever is asked for a summary answers with <failure>
    And 10 turns, each with a tool result of 40 tokens, which the gateway has not seen yet
    And a conversation of 15 turns of 450 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "trimmed"
    And the answer warns of "Summarized without a model"
    And the model saw "look_up("

    Examples:
      | failure     |
      | an error    |
      | nothing     |
      | nonsense    |
      | a tool call |

  # Stage 6

  Scenario Outline: The higher the pressure, the less is left of a tool result
    Given a conversation of 10 turns of <filler> tokens, which the gateway has not seen yet
    And a turn with 1 calls one after the other, each with a result of 1,400 tokens, not yet answered
    When the user goes on, though the model said nothing to the last result
    Then the answer says "<status>"
    And the last result was shown with <least> to <most> characters

    Examples:
      | filler | status  | least | most  |
      | 480    | full    | 8,000 | 9,334 |
      | 525    | trimmed | 4,200 | 4,712 |
      | 565    | trimmed | 1,680 | 1,912 |
      | 630    | trimmed | 420   | 512   |

  Scenario Outline: Results fade from a pressure of 0.80, 0.85, 0.90 and 0.99 on, to their cap, a half, a fifth and a twentieth of it
    Given the policy "fade"
    And a conversation of 10 turns of <filler> tokens, which the gateway has not seen yet
    When the user goes on after a read result with which the conversation weighs <tokens> tokens
    Then the last result was shown with <least> to <most> characters

    Examples:
      | filler | tokens | least | most   |
      | 370    | 6,228  | 9,900 | 20,000 |
      | 370    | 6,229  | 9,240 | 9,400  |
      | 480    | 7,400  | 9,240 | 9,400  |
      | 518    | 6,617  | 8,000 | 9,400  |
      | 518    | 6,634  | 4,600 | 4,710  |
      | 580    | 7,006  | 4,600 | 8,000  |
      | 580    | 7,007  | 1,830 | 1,905  |
      | 650    | 7,707  | 1,830 | 1,905  |
      | 650    | 7,708  | 440   | 505    |

  Scenario: Of what a result may keep, the oldest keeps a fifth
    Given a conversation of 10 turns of 500 tokens, which the gateway has not seen yet
    And a turn with 5 calls one after the other, each with a result of 500 tokens, not yet answered
    When the user goes on, though the model said nothing to the last result
    Then the answer says "trimmed"
    And the newer a result, the more of it was kept
    And the first result was cut to at most 1,867 characters and a line that says what is missing

  # Stage 7

  Scenario: Large results are pruned by their place, if that is wanted
    Given a model with a window of 128,000 tokens
    And the policy "fade" with:
      | stages           | [prune_by_position, drop_oldest] |
      | position_pruning | true                             |
    And 12 turns, each with a tool result of 8,200 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "trimmed"
    And the model saw 3 results whole, 3 with 1,500 characters at each end, 6 cleared

  Scenario: Nothing is pruned by its place unless that is wanted
    Given a model with a window of 128,000 tokens
    And the policy "fade" with:
      | stages | [prune_by_position, drop_oldest] |
    And 12 turns, each with a tool result of 8,200 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "full"

  # Stage 8

  Scenario: Of new results that do not fit the oldest are cut first, and the log never changes
    Given the policy "fade" with:
      | stages | [drop_oldest, share_evenly] |
    And results of 600 tokens that were asked for at once, 20 of them, not yet answered
    When the model goes on from the last result
    Then the answer says "trimmed"
    And the newer a result, the more of it was kept
    And the last result was shown word for word
    And each result was shown with at least 150 characters
    And the prompt was at most 7,782 tokens
    And the store holds the whole conversation word for word

  # Provider overflow

  Scenario: A model that takes less than was thought says so once, and is believed from then on
    Given a model with a window of 32,768 tokens
    And the model really takes 6,000 tokens, and says so when it refuses
    When the user brings a new conversation that weighs 12,000 tokens
    Then the answer says "trimmed"
    And it was made within the same request, after the model had refused
    And no summary was asked for
    When the gateway is restarted
    And the user says "Go on."
    Then its context says:
      | window    | 6,000 |
      | recovered | false |

  Scenario: A model that only says that it was too much gets less, and then a summary
    Given a model with a window of 32,768 tokens
    And the policy "checkpoint"
    And the model really takes 5,000 tokens, and only says that it was too much
    When the user brings a new conversation that weighs 12,000 tokens
    Then the answer says "summarized"
    And it was made within the same request, after the model had refused
    And the model was asked 3 times for the answer, and for a summary only after the second
