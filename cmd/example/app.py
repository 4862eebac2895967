"""A word counter over HTTP: the example Repo of claude-hub."""
import http.server
import json
import sys


def count(text):
    """How often each word is in text, most frequent first."""
    words = {}
    for word in text.lower().split():
        words[word] = words.get(word, 0) + 1
    return sorted(words.items(), key=lambda item: (-item[1], item[0]))


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode(errors="replace")
        body = json.dumps(count(text)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
