#!/bin/bash
# Runs at every boot of a Sandbox, in /workspace. Start services here; they run on in the background.
set -eu
python3 -m unittest -v
nohup python3 app.py 8000 > /tmp/app.log 2>&1 &
echo "wordcount serves on port 8000 of this Sandbox"
