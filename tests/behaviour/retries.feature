Feature: Retries: a request that comes again is answered once
  One call of the model and one turn in the conversation, however often a client asks. What is meant as a new request is one.

  Background:
    Given a model with a window of 8,192 tokens

  Scenario Outline: A client whose patience ends before the model's answer is there gets it with its retry
    Given a model that thinks until it is told to answer
    And a client <named> has hung up on "What is the plan?"
    When the client sends it again <way>
    And the model answers "Plant beans."
    Then the client hears "Plant beans."
    And the model was asked 1 times
    And the conversation reads "What is the plan?", "Plant beans."

    Examples:
      | named                  | way               |
      | that names nothing     | as a retry        |
      | that names nothing     | without saying so |
      | in conversation garden | as a retry        |
      | in conversation garden | without saying so |
      | with key k1            | without saying so |

  Scenario: An answer that came after its client had left waits for it, and is given once
    Given a model that thinks until it is told to answer
    And a client that names nothing has hung up on "What is the plan?"
    When the model answers "Plant beans."
    And the gateway has had time
    And the client sends it again without saying so
    Then the client hears "Plant beans."
    And it is told that this answer was made before
    When the client sends it again without saying so
    And the model answers "Plant peas."
    Then the client hears "Plant peas."
    And the model was asked 2 times

  Scenario: A stream does not end with its first client once another has joined it
    Given a model that thinks until it is told to answer
    And a client that reads a stream has asked "What is the plan?"
    When the client sends it again as a retry
    And the first attempt is hung up
    And the model answers "Beans."
    Then the client hears "Beans."
    And the model was asked 1 times
    And the conversation reads "What is the plan?", "Beans."

  Scenario: The same question twice at once is two questions
    Given a model that thinks until it is told to answer
    And a client that names nothing has asked "Roll the dice."
    When the client sends it again without saying so
    And the model answers "Four."
    Then the client hears "Four."
    And the model was asked 2 times

  Scenario: A failed attempt is tried again, in its place
    Given a model that thinks until it is told to answer
    And a client in conversation garden has asked "What is the plan?"
    When the model fails
    And the client sends it again as a retry
    And the model answers "Plant beans."
    Then the client hears "Plant beans."
    And the conversation reads "What is the plan?", "Plant beans."

  Scenario Outline: An attempt that failed makes the answer before it no answer to its retry
    Given a model that thinks until it is told to answer
    And a client <named> has asked "Tell me a joke."
    When the model answers "An old joke."
    Then the client hears "An old joke."
    When the client sends it again without saying so
    And the model fails
    And the client sends it again as a retry
    And the model answers "A new joke."
    Then the client hears "A new joke."
    And the model was asked 3 times

    Examples:
      | named                  |
      | that names nothing     |
      | in conversation garden |

  Scenario Outline: A request that asks otherwise is no retry, whatever it says of itself
    Given a model that thinks until it is told to answer
    And a client that names nothing has asked "What is the plan?"
    When the model answers "Plant beans."
    Then the client hears "Plant beans."
    When the client sends it again as a retry, but with another <part>
    And the model answers "Plant peas."
    Then the client hears "Plant peas."
    And the model was asked 2 times

    Examples:
      | part              |
      | model             |
      | temperature       |
      | number of choices |
      | tool              |

  Scenario: A key stands for one request, whichever gateway it reaches
    Given two gateways share one store
    When a client with key k1 has asked "What is the plan?"
    And the client sends it again without saying so
    Then it is told that this answer was made before
    And the model was asked 1 times
    When a client with key k1 has asked "What else?"
    Then the client is refused with 422 and the code idempotency_key_reused
