"""The body of a message: the form in which the core reads messages of every protocol. It has the fields of Chat
Completions, and what these cannot express as content parts of their own types. Pure."""
