"""Operations launched one by one, outside any program."""
