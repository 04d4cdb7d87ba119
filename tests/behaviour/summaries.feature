Feature: Summaries can be read, edited, written anew, rolled back and deleted
  A summary is the gateway's word for what was said. Whoever knows better can correct it, and nothing is lost by that.

  Background:
    Given a model with a window of 8,192 tokens
    And the policy "additive" with:
      | recall        | off |
      | prepare_ratio | 1   |

  Scenario: A correction is what the model reads from then on
    Given the user has said "The password of the shed is swordfish."
    And the conversation has been summarized 1 times, by turns of 300 tokens
    When the user rewrites the first summary as "The password of the shed is now barracuda."
    And the user says "Go on."
    Then the model saw "barracuda"
    And the first summary has 2 revisions

  Scenario: A correction is taken back
    Given the conversation has been summarized 1 times, by turns of 300 tokens
    When the user rewrites the first summary as "Nothing was said."
    And the user goes back to revision 1 of the first summary
    And the user says "Go on."
    Then the model did not see "Nothing was said."
    And the first summary has 3 revisions

  Scenario: Two people correct the same summary
    Given the conversation has been summarized 1 times, by turns of 300 tokens
    When the user rewrites the first summary as "One." having seen revision 1
    And the user rewrites the first summary as "Two." having seen revision 1
    Then that is refused with 409 and the code revision_conflict
    And the first summary says "One."

  Scenario: A poor summary is written anew, with something to focus on
    Given the conversation has been summarized 1 times, by turns of 300 tokens
    When the user has the first summary written anew with "Focus on the numbers."
    Then whoever wrote it last was told "Focus on the numbers."
    And the first summary has 2 revisions

  Scenario: A model that fails changes nothing
    Given the conversation has been summarized 1 times, by turns of 300 tokens
    And whoever is asked for a summary answers with nonsense
    When the user has the first summary written anew with "Focus on the numbers."
    Then that is refused with 502 and the code upstream_unavailable
    And the first summary has 1 revisions

  Scenario: Without its summary the log is summarized again when room is needed
    Given the user has said "The password of the shed is swordfish."
    And the conversation has been summarized 1 times, by turns of 300 tokens
    When the user deletes the first summary
    And the user says "Go on."
    Then the answer says "summarized"
    And 2 summaries were asked for
