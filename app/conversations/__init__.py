"""Operations on stored conversations other than answering: read, search, edit, erase, export, import."""
