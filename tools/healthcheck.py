"""Asks the site on this machine for its health, as the proxy would; exit code 0 when it is well. Argument: the port."""

import os
import sys
import urllib.request

host = os.environ.get("ALLOWED_HOSTS", "localhost").split(",")[0].strip().lstrip(".*") or "localhost"
port = sys.argv[1] if len(sys.argv) > 1 else "8000"
request = urllib.request.Request(
    f"http://127.0.0.1:{port}/health", headers={"Host": host, "X-Forwarded-Proto": "https"}
)
try:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=5) as answer:
        sys.exit(answer.status != 200)
except OSError as error:
    sys.exit(f"not healthy: {error}")
