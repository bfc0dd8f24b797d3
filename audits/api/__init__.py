"""REST under /api/v1/: the same nouns as the pages, through the same services and querysets."""
