Feature: Editing the context: old tool results and old reasoning are cleared, and summaries on request
  What context editing and server-side compaction offer elsewhere works here, under the policy that everybody has.

  Background:
    Given a model with a window of 8,192 tokens
    And the policy "additive" with:
      | recall        | off |
      | prepare_ratio | 1   |

  Scenario: Once the conversation is above a trigger, all but the last three tool results are cleared
    Given the policy "additive" with:
      | clear_tool_results.trigger_tokens | 3,000 |
    And 6 turns, each with a tool result of 500 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "trimmed"
    And the model saw the results:
      | Result 1 | cleared |
      | Result 2 | cleared |
      | Result 3 | cleared |
      | Result 4 | whole   |
      | Result 5 | whole   |
      | Result 6 | whole   |
    And every message but results was shown word for word
    And the store holds the whole conversation word for word

  Scenario: Below the trigger nothing is cleared
    Given the policy "additive" with:
      | clear_tool_results.trigger_tokens | 4,000 |
    And 6 turns, each with a tool result of 500 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "full"

  Scenario: How many stay, and which tools are left alone, is configured
    Given the policy "additive" with:
      | clear_tool_results.trigger_tokens | 2,000       |
      | clear_tool_results.keep           | 1           |
      | clear_tool_results.exclude_tools  | [read_memo] |
    And a turn with a call of "look_up" and a result of 700 tokens, which the gateway has not seen yet
    And a turn with a call of "read_memo" and a result of 700 tokens, which the gateway has not seen yet
    And a turn with a call of "look_up" and a result of 700 tokens, which the gateway has not seen yet
    And a turn with a call of "look_up" and a result of 700 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the model saw the results:
      | Result 1 | cleared |
      | Result 2 | whole   |
      | Result 3 | cleared |
      | Result 4 | whole   |

  Scenario Outline: Nothing is cleared where too little would come of it
    Given the policy "additive" with:
      | clear_tool_results.trigger_tokens        | 3,000   |
      | clear_tool_results.clear_at_least_tokens | <least> |
    And 6 turns, each with a tool result of 500 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "<status>"

    Examples:
      | least | status  |
      | 1,400 | trimmed |
      | 1,600 | full    |

  Scenario: The arguments of cleared calls may be cleared too
    Given the policy "additive" with:
      | clear_tool_results.trigger_tokens | 3,000 |
      | clear_tool_results.inputs         | true  |
    And 6 turns, each with a tool result of 500 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the arguments of the calls whose results were cleared are empty

  Scenario: Reasoning of all but the newest three turns is cleared, the one being answered included
    Given the policy "additive" with:
      | clear_reasoning.keep_turns | 3 |
    And a conversation of 1 turns of 600 tokens, which the gateway has not seen yet
    And 6 turns whose answers carry 200 tokens of reasoning, which the gateway has not seen yet
    When the user says "Go on."
    Then the model saw the reasoning of the last 2 answers only

  # Summary-buffer memories

  Scenario: One rolling summary instead of many, for those who want it
    Given the policy "additive" with:
      | strategy | recursive |
    And the user has told the fact that the key is under the mat, among 300 tokens
    When the conversation goes on by turns of 300 tokens until it has been summarized 3 times
    Then the model saw one summary
    And the model saw the fact that the key is under the mat

  Scenario: What a rolling summary has no room for is lost, and that is why it is not what everybody gets
    Given the policy "additive" with:
      | strategy        | recursive |
      | user_text_ratio | 0         |
    And a summary has room for 20 facts
    When the user tells a fact in each of 50 questions of 280 tokens, over 10 topics
    Then in turn 50 the facts of the first topic were lost

  # Server-side compaction, command-line agents

  Scenario: A summary can be asked for at any time, and told what to look at
    Given the conversation has gone on for 10 turns of 100 tokens
    When the user says "And now for something else." with:
      | context.summarize    | now                  |
      | context.instructions | the colours of boats |
    Then the answer says "summarized"
    And whoever writes the summary is told "Pay particular attention to: the colours of boats"
    And the model saw the last 4 turns word for word, the new message, and nothing else but summaries
    When the user says "Go on."
    Then the answer says "summarized"
    And no summary was asked for

  Scenario: A client may rule summaries out for one request
    Given the conversation has grown to 5,734 tokens
    When the user says "Go on." with:
      | context.summarize | never |
    Then no summary was asked for
    And the answer says "full"

  Scenario: Instructions are sent fresh with every request and survive every summary
    Given the instructions "Speak like a pirate, and never mention the parrot."
    When the conversation goes on by turns of 300 tokens until it has been summarized 3 times
    Then the model always saw the instructions and the new message word for word
    When the client changes its instructions to "Speak plainly."
    And the user says "Go on."
    Then the model saw "Speak plainly."
    And the model did not see "pirate"
    And the model saw 3 summaries
