Feature: A sliding window: the last turns or the last tokens, and no model is asked
  Policy `window`, as consumer chats and window memories do it. The window moves in steps of a quarter.

  Background:
    Given a model with a window of 8,192 tokens
    And the instructions "You are a careful clerk."

  Scenario: The last eight turns are kept, and once there are more, six of them
    Given the policy "window" with:
      | keep_turns | 8 |
    When the conversation goes on for 8 turns of 100 tokens
    Then every answer said "full"
    When the user says "Go on."
    Then the answer says "trimmed"
    And the model saw the last 5 turns word for word, the new message, and nothing else
    And a line says how many messages are not shown
    And no summary was ever asked for

  Scenario: The last 2,000 tokens are kept, and once there are more, 1,500 of them
    Given the policy "window" with:
      | keep_tokens | 2,000 |
    When the conversation goes on for 40 turns of 100 tokens
    Then every request was answered
    And no prompt was ever above 2,050 tokens
    And the model saw the newest turns word for word, from the beginning of one on
    And no summary was ever asked for

  Scenario: Of 2,000 tokens that are kept a step leaves 1,500
    Given the policy "window" with:
      | keep_tokens | 2,000 |
    When the user brings a new conversation that weighs 2,100 tokens
    Then the answer says "trimmed"
    And the prompt was at most 1,550 tokens

  Scenario: How much the window keeps when it moves on is configured
    Given the policy "window" with:
      | keep_turns   | 8   |
      | target_ratio | 0.5 |
    When the conversation goes on for 8 turns of 100 tokens
    And the user says "Go on."
    Then the model saw the last 3 turns word for word, the new message, and nothing else

  Scenario: Between two steps each prompt begins with the one before
    Given the policy "window" with:
      | keep_turns | 12 |
    When the conversation goes on for 40 turns of 100 tokens
    Then of 40 requests no more than 10 broke the provider's prompt cache

  Scenario: Without a number all that fits is kept
    Given the policy "window"
    When the user brings a new conversation that weighs 7,782 tokens
    Then the answer says "full"
    When the user says "Go on."
    Then the answer says "trimmed"
    And the model saw the newest turns word for word, from the beginning of one on

  Scenario Outline: A long answer gives way, and the prompt stays whole
    Given a model with a window of 32,768 tokens
    And the policy "<policy>"
    When the user brings a new conversation that weighs 20,000 tokens, with:
      | <field> | 64,000 |
    Then the answer says "full"
    And the model saw the whole conversation word for word
    And its context says:
      | prompt_tokens     | 20,000 |
      | limit             | 27,034 |
      | compacts_above    | <line> |
      | pressure          | 0.7398 |
      | max_output_tokens | 11,130 |
    And its header X-Context-Tokens says 20,000/27,034
    And the provider was asked for at most 11,130 tokens with <field>

    Examples:
      | policy   | field                 | line   |
      | window   | max_tokens            | 27,034 |
      | fade     | max_completion_tokens | 27,034 |
      | additive | max_tokens            | 22,937 |

  Scenario: What the window has left behind is kept in the store
    Given the policy "window" with:
      | keep_turns | 2 |
    When the conversation goes on for 10 turns of 100 tokens
    Then the store holds the whole conversation word for word

  Scenario: A client may choose another policy for one request
    Given the policy "window" with:
      | keep_turns | 2 |
    And the conversation has gone on for 10 turns of 100 tokens
    When the user says "All of it, please." with:
      | context.policy | additive |
    Then the answer says "full"
    And the model saw the whole conversation word for word

  Scenario: A policy that does not exist is refused
    When the user says "Hello." with:
      | context.policy | magic |
    Then the request is refused with 400 and the code policy_not_found
