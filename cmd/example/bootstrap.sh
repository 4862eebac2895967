#!/bin/bash
# Runs once for each version on each Runner, as root and without the Workspace. What it leaves behind is snapshotted,
# and every Sandbox boots from it. Install tools here.
set -eu
python3 --version
cat > /usr/local/bin/wordcount <<'SCRIPT'
#!/bin/sh
exec python3 -c 'import sys; sys.path.insert(0, "/workspace"); import app; [print(n, w) for w, n in app.count(sys.stdin.read())]'
SCRIPT
chmod 755 /usr/local/bin/wordcount
echo "installed /usr/local/bin/wordcount"
