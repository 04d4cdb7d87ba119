Feature: Items: what a conversation holds, one by one
  Items can be listed in pages, added and taken out.

  Background:
    Given a model with a window of 8,192 tokens
    And the policy "additive" with:
      | recall | off |

  Scenario: What was said is there to be read
    Given the user has said "The code is 7741."
    When the user says "What is the code?"
    Then the items of the conversation say:
      | role      | content           |
      | user      | The code is 7741. |
      | assistant | Noted.            |
      | user      | What is the code? |
      | assistant | Noted.            |

  Scenario Outline: Pages are the whole list, however large they are
    Given the conversation has gone on for 6 turns of 40 tokens
    Then pages of <size> items are all 12 items, in <order> order

    Examples:
      | size | order      |
      | 1    | ascending  |
      | 5    | ascending  |
      | 5    | descending |
      | 100  | descending |

  Scenario: A tool's call and its result are put in by hand
    When the user begins a conversation with the items:
      | type                 | call_id | name | arguments | output        |
      | function_call        | call_1  | open | {}        |               |
      | function_call_output | call_1  |      |           | A concertina. |
    And the user says "What was it?" in the conversation that was begun
    Then the model saw the call "open" and the result "A concertina."

  Scenario: Of items that cannot all be kept none is
    When the user begins an empty conversation
    And the user adds the items:
      | role | content | type            |
      | user | Hi      | message         |
      |      |         | web_search_call |
    Then the request is refused with status 400, about "items[1].type"
    And the conversation that was begun has no items

  Scenario: An item that was taken out is shown to nobody
    When the user begins a conversation with the items:
      | role      | content           |
      | user      | The code is 7741. |
      | assistant | Noted.            |
    And the user takes out the first item
    And the user says "What is the code?" in the conversation that was begun
    Then the model did not see "7741"
    And the items of the conversation say:
      | role      | content           |
      | assistant | Noted.            |
      | user      | What is the code? |
      | assistant | Noted.            |
