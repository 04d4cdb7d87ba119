Feature: Priority pruning: what can be spared goes first, and no model is asked
  Policy `prune`: long results are truncated, old rounds told in a line per call, results dropped, and only then the oldest
  turns. It stops as soon as there is room. When the limit is passed it cuts to three quarters, so that it need not cut
  again with the next turn.

  Background:
    Given a model with a window of 8,192 tokens
    And the policy "prune"
    And the instructions "You are a careful clerk."

  Scenario: Nothing is touched while everything fits
    When the user brings a new conversation that weighs 7,782 tokens
    Then the answer says "full"
    And the model saw the whole conversation word for word

  Scenario: Results above 2,000 tokens are truncated first, and if that is enough nothing else is
    Given a turn with a call of "look_up" and a result of 5,000 tokens, which the gateway has not seen yet
    And a conversation of 10 turns of 300 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "trimmed"
    And the first result took at most 2,000 tokens, and everything else was shown word for word

  Scenario: Then rounds with calls that are older than four turns are told in a line per call
    Given 12 turns, each with a tool result of 600 tokens, which the gateway has not seen yet
    And a turn with a call of "send_mail" that ended in "Error: no such address", which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "trimmed"
    And the oldest 4 rounds with calls were told in a line each, the others shown word for word
    And the model saw "look_up({"query": "lamp 1"}): Result 1: garden river"
    And no message was left out

  Scenario: A call that failed is told as an error
    Given a turn with a call of "send_mail" that ended in "Error: no such address, although the mail was written with great care and at some length for everybody who lives there", which the gateway has not seen yet
    And 12 turns, each with a tool result of 600 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the model saw "ERROR: Error: no such address"

  Scenario: Then the results that are left are dropped, and a stub answers each call
    Given 3 turns, each with a tool result of 1,990 tokens, which the gateway has not seen yet
    When the user says something of 1,700 tokens
    Then the answer says "trimmed"
    And 2 results were left out, each with a stub in its place, the others shown word for word
    And no message was left out

  Scenario: Last of all the oldest turns go, whole
    Given a conversation of 30 turns of 300 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "trimmed"
    And a line says how many messages are not shown
    And the prompt was at most 5,900 tokens
    And the model saw the newest turns word for word, from the beginning of one on

  Scenario Outline: How much a cut leaves is configured
    Given the policy "prune" with:
      | target_ratio | <ratio> |
      | step_ratio   | 0.05    |
    And a conversation of 40 turns of 200 tokens, which the gateway has not seen yet
    When the user says "Go on."
    Then the answer says "trimmed"
    And the prompt was at most <most> tokens
    And the prompt was at least <least> tokens

    Examples:
      | ratio | least | most  |
      | 0.75  | 5,400 | 6,050 |
      | 0.5   | 3,450 | 4,100 |

  Scenario: Instructions and the newest request are never pruned, however little room is left
    Given a conversation of 30 turns of 300 tokens, which the gateway has not seen yet
    When the user says something of 7,500 tokens
    Then the answer says "trimmed"
    And the model saw the instructions and the new message word for word

  Scenario: A long run of an agent comes to its end
    When the agent works through 60 calls with results of 400 tokens each
    Then every request was answered
    And the model always saw the instructions and the new message word for word
    And no prompt was ever above 7,782 tokens
    And no summary was ever asked for
    And the store holds the whole conversation word for word

  Scenario: What was cut stays cut for many turns, so that the provider's cache keeps working
    When the conversation goes on for 60 turns of 300 tokens
    Then of 60 requests no more than 6 broke the provider's prompt cache
    And no prompt was ever above 7,782 tokens

  Scenario: A user can be shown how full the window is
    When the user brings a new conversation that weighs 6,240 tokens
    Then its header X-Context-Tokens says 6,240/7,782
    And its context says:
      | window        | 8,192 |
      | prompt_tokens | 6,240 |
