Feature: Additive compaction: old turns become summaries that are written once and kept
  The policy of everyone who chooses none. Nothing is quoted, prepared ahead or kept as user text here: these have tests of their own.

  Background:
    Given a model with a window of 8,192 tokens
    And the policy "additive" with:
      | recall          | off |
      | prepare_ratio   | 1   |
      | user_text_ratio | 0   |

  Scenario: A conversation is summarized once it weighs more than 70 % of the window
    When the conversation has grown to 5,734 tokens
    Then every answer said "full"
    And the model always saw the whole conversation word for word
    And no summary was ever asked for
    When the user says "Go on."
    Then the answer says "summarized"
    And one summary was asked for

  Scenario Outline: The line is 70 % of the window, and never below 4,096 tokens
    Given a model with a window of <window> tokens
    When the user brings a new conversation that weighs <line> tokens
    Then the answer says "full"
    And its estimate is <line> tokens
    When the user brings a new conversation that weighs <above> tokens
    Then the answer says "summarized"

    Examples:
      | window  | line   | above  |
      | 8,192   | 5,734  | 5,735  |
      | 5,000   | 4,096  | 4,097  |
      | 128,000 | 89,600 | 89,601 |

  Scenario: Every answer says above which prompt the next one is compacted, whatever answer is asked for
    When the user brings a new conversation that weighs 5,734 tokens, with:
      | max_tokens | 4,000 |
    Then the answer says "full"
    And its context says:
      | compacts_above | 5,734 |
      | limit          | 6,758 |
    When the user brings a new conversation that weighs 5,735 tokens, with:
      | max_tokens | 4,000 |
    Then the answer says "summarized"

  Scenario: How many turns there were does not matter
    When the conversation goes on for 60 turns of 40 tokens
    Then every answer said "full"
    And no summary was ever asked for

  Scenario Outline: The last four turns stay word for word, fewer where they would take more than 30 % of the window
    Given a conversation of <turns> turns of <tokens> tokens, which the gateway has not seen yet
    When the user says something of <new> tokens
    Then the answer says "summarized"
    And the model saw the last <kept> turns word for word, the new message, and nothing else but summaries

    Examples:
      | turns | tokens | new   | kept |
      | 12    | 600    | 40    | 4    |
      | 20    | 300    | 40    | 4    |
      | 9     | 700    | 40    | 3    |
      | 7     | 1,000  | 40    | 2    |
      | 3     | 2,000  | 40    | 1    |
      | 2     | 2,850  | 100   | 1    |
      | 12    | 500    | 3,600 | 3    |
      | 12    | 450    | 5,000 | 1    |

  Scenario: Of turns of more than a quarter of the window the newest always stays, so each turn has a summary made
    When the conversation goes on for 21 turns of 2,300 tokens
    Then every request was answered
    And 19 summaries were asked for

  Scenario: A second summary is added to the first and leaves it as it is
    Given the instructions "You are a careful clerk."
    When the conversation goes on by turns of 300 tokens until it has been summarized 2 times
    Then the model saw the instructions, the summaries, the newest turns and the new message, in this order
    And the model saw 2 summaries
    And the summaries stand in one message of the user's
    And the first summary reads as it did when it was new
    And the store holds 2 summaries that follow each other from the beginning
    And the store holds the whole conversation word for word

  Scenario Outline: A summary may take as much as was configured, and in a small window a sixteenth of it
    Given a model with a window of <window> tokens
    And the policy "additive" with:
      | summarizer.max_summary_tokens | <most> |
    When the user brings a new conversation that weighs <tokens> tokens
    Then the answer says "summarized"
    And a summary was asked for of at most <asked> tokens

    Examples:
      | window  | most  | tokens | asked |
      | 8,192   | 2,048 | 6,000  | 512   |
      | 8,192   | 300   | 6,000  | 300   |
      | 128,000 | 2,048 | 90,000 | 2,048 |

  Scenario: Summaries that weigh more than 30 % of the window are folded into one, which is kept beside them
    Given summaries of 500 tokens
    When the conversation goes on by turns of 600 tokens until summaries are folded
    Then the fold stands for 5 summaries, the first that weigh more than 2,457 tokens together
    And the fold names the summaries it stands for, and these are still kept
    And no summary is shown together with its fold
    When the user says "Go on."
    Then no summary was asked for
    And no summary is shown together with its fold

  Scenario: Where more of the summaries that there are must be shown, a quarter of the line becomes free
    Given the model "a-larger-one" with a window of 49,152 tokens
    And a conversation of 140 turns of 300 tokens, which the gateway has not seen yet
    When the user says "Go on."
    And the user asks the model "a-larger-one"
    Then the model saw 2 summaries
    When the conversation goes on for 3 turns of 1,000 tokens
    Then the model saw 4 summaries
    And the prompt was at most 25,804 tokens

  Scenario Outline: Summaries are written by the request's own model, or by a cheaper one
    Given the model "a-cheaper-one" with a window of 8,192 tokens
    And the policy "additive" with:
      | summarizer.model | <configured> |
    When the conversation goes on by turns of 300 tokens until it has been summarized 1 times
    Then the model "<writer>" was asked for the summary

    Examples:
      | configured    | writer        |
      | same          | the-model     |
      | a-cheaper-one | a-cheaper-one |

  Scenario: Whoever writes a summary is told the five things that must be kept
    When the conversation goes on by turns of 300 tokens until it has been summarized 1 times
    Then whoever writes the summary is told:
      | original question    |
      | environment          |
      | Every error          |
      | every command        |
      | what came of it      |
      | Decisions            |
      | reasons              |
      | What is resolved     |
      | what is still open   |
      | Who said what        |

  Scenario Outline: A summary that leaves out much is asked for once more, and the one that keeps more is taken
    Given a model with a window of 16,384 tokens
    And the user has booked 60 flights, each in a turn of 180 tokens
    And the first summary names <first> of the flights, and the one that is asked for again <second>
    When the conversation goes on by turns of 300 tokens until it has been summarized 1 times
    Then the <kept> summary is the one that is kept

    Examples:
      | first | second | kept   |
      | 30    | 29     | first  |
      | 30    | 31     | second |

  Scenario: A prompt of one's own replaces the instruction
    Given the policy "additive" with:
      | summarizer.prompt | List every patient, every dose and every allergy. |
    When the conversation goes on by turns of 300 tokens until it has been summarized 1 times
    Then whoever writes the summary is told "List every patient, every dose and every allergy."
    And whoever writes the summary is not told "Keep these five things"

  Scenario: Two requests at the same time share one summary, and the second sees what came of the first
    Given the client sends only its new messages, and the name of its conversation
    And the conversation has grown to 5,700 tokens
    When two requests of 200 tokens are made at the same time
    Then every request was answered
    And one summary was asked for
    And the one that came second saw the other's message and its answer

  Scenario: Who reads the answer as it comes is told before a summary is made
    Given the conversation has grown to 5,734 tokens
    When the user says "Go on." and reads the answer as it comes
    Then the stream began by saying that a summary is being made, of 5,748 tokens in a window of 8,192
    And it then said that the summary is there, and how long it took
    And the answer reads "Noted."

  Scenario: The conversation stays the same one, and all of it can still be read
    When the conversation goes on by turns of 300 tokens until it has been summarized 3 times
    Then the answers all name the same conversation
    And the store holds the whole conversation word for word
    And the store holds 3 summaries that follow each other from the beginning

  Scenario Outline: What is kept of each summary, wherever it is kept
    Given conversations are kept in <place>
    When the conversation goes on by turns of 300 tokens until it has been summarized 2 times
    Then each summary is kept with its text, the last turn it covers, its own tokens, its time and its model
    When the gateway is restarted
    And the user says "Go on."
    Then no summary was asked for
    And the model saw 2 summaries

    Examples:
      | place  |
      | memory |
      | SQLite |

  Scenario: Every request is estimated, and only what is new is counted
    When the conversation goes on for 15 turns of 300 tokens
    Then every estimate was within 5 % of what the provider counted
    And no message of the client's was counted twice

  Scenario: Windows, threshold, floor and buffer come from the configuration
    Given this configuration:
      """
      models:
        the-model: {provider: upstream, context_window: 20000}
      policies:
        additive: {threshold_ratio: 0.4, token_floor: 1000, buffer_turns: 2, buffer_max_ratio: 0.3, recall: off, prepare_ratio: 1, fold_ratio: 0.3, regrow_ratio: 0.3}
      """
    When the user brings a new conversation that weighs 8,000 tokens
    Then the answer says "full"
    When the user brings a new conversation that weighs 8,001 tokens
    Then the answer says "summarized"
    And the model saw the last 2 turns word for word, the new message, and nothing else but summaries

  Scenario Outline: However long the conversation is, it is answered
    Given a conversation of <turns> turns of <tokens> tokens, which the gateway has not seen yet
    When the user says something of <new> tokens
    Then the answer says "<status>"
    And the prompt was at most 7,782 tokens
    And the model saw the instructions and the new message word for word

    Examples:
      | turns | tokens | new   | status     |
      | 150   | 300    | 40    | summarized |
      | 3     | 20,000 | 40    | summarized |
      | 12    | 500    | 7,000 | summarized |
      | 12    | 500    | 7,700 | trimmed    |

  Scenario: Only what can never fit is refused, with the numbers, and nothing is kept of it
    Given instructions of 1,000 tokens
    When the user says something of 11,000 tokens
    Then the request is refused with 400 and the code context_length_exceeded
    And the refusal mentions "8192"
    When the user says less, in 6,000 tokens
    Then the answer says "full"
    And the store holds the whole conversation word for word

  Scenario: Fifty questions over ten topics, and each topic's facts within reach to the end
    Given a summary has room for 20 facts
    When the user tells a fact in each of 50 questions of 280 tokens, over 10 topics
    Then at the probes in turns 11, 21, 31, 41, 46 and 50 the model saw every fact told so far
    And the conversation was summarized at least 3 times
    And each summary made the prompt that followed it grow by no more than twice what another did
