"""Sets of tokens, and walks over a vocabulary's trie."""
