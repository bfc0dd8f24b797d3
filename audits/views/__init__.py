"""Pages. A view fetches through the user's querysets, checks a form, calls a service, and redirects or renders."""
