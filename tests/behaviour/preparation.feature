Feature: Prepared ahead: the next summary is there before it is needed, and nobody waits for it
  Past 60 % of the window (4,915 of 8,192 tokens), and as soon as the next turns may cross the line at 70 % (5,734 tokens),
  it is made in the background after an answer. It is used once the line is crossed, and not before.

  Background:
    Given a model with a window of 8,192 tokens
    And the policy "additive" with:
      | recall        | off |
      | prepare_ratio | 0.6 |

  Scenario: Up to 60 % nothing is prepared
    When the conversation has grown to 4,900 tokens
    And the gateway has had time
    Then no summary was ever asked for

  Scenario: While the line is far off by how fast the conversation grows, nothing is prepared yet
    When the conversation has grown to 5,000 tokens
    And the gateway has had time
    Then no summary was ever asked for

  Scenario: Near the line the summary is made after the answer, and not used yet
    When the conversation has grown to 5,500 tokens
    And the gateway has prepared a summary
    Then the answer says "full"
    When the user says "Go on."
    Then the answer says "full"
    And the model saw the whole conversation word for word
    And one summary was asked for

  Scenario: Whoever crosses the line does not wait
    Given the conversation has grown to 5,500 tokens
    And the gateway has prepared a summary
    When the user says something of 300 tokens and reads the answer as it comes
    Then the answer says "summarized"
    And no summary was asked for
    And the stream never said that a summary is being made
    And its context does not say that a summary was made

  Scenario: What had to be told without a model is told by one when it is back
    Given the policy "additive" with:
      | prepare_ratio | 1 |
    And the model "the-model" answers with nothing when it is asked for a summary
    And the conversation has grown to 5,800 tokens
    When summaries can be had again
    And the user says "Go on."
    And the gateway has replaced the summary that was made without a model
    And the user says "Go on."
    Then the answer says "summarized"
    And the model saw "Notes"

  Scenario: A client that wants no summary gets none prepared
    Given the client says in each request:
      | context | {summarize: never} |
    When the conversation has grown to 5,500 tokens
    And the gateway has had time
    Then no summary was ever asked for

  Scenario: A summary that could not be prepared is made when it is needed
    Given the model "the-model" answers with an error when it is asked for a summary
    And the conversation has grown to 5,500 tokens
    And the gateway has had time
    When summaries can be had again
    And the conversation has grown to 5,800 tokens
    Then the answer says "summarized"
