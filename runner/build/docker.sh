#!/bin/sh
# Puts Docker into a build's root filesystem, by the image's own package manager, as root and before the bootstrap.
# CLAUDE_HUB_USER is the image's USER.
set -eu

installed() { command -v dockerd >/dev/null 2>&1 && command -v docker >/dev/null 2>&1; }

# first prints the first of the packages that the archive has.
first() {
	for p; do
		if [ -n "$(apt-cache policy "$p" 2>/dev/null | sed -n 's/^  Candidate: //p' | grep -v none)" ]; then
			echo "$p"
			return
		fi
	done
}

apt() {
	apt-get update
	# Nothing starts services while packages are set up: dockerd runs on the disk it gets here.
	policy=/usr/sbin/policy-rc.d
	if [ ! -e "$policy" ]; then
		trap 'rm -f "$policy"' EXIT
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
	fi
	# Debian from trixie on has the client apart; where there is compose v2, it is docker-compose-v2 or docker-compose.
	# shellcheck disable=SC2046
	apt-get install -y --no-install-recommends -o APT::Keep-Downloaded-Packages=false \
		docker.io iptables ca-certificates $(first docker-cli) $(first docker-buildx) $(first docker-compose-v2 docker-compose)
}

if installed; then
	echo "Docker is in the image already: $(docker --version)"
elif command -v apt-get >/dev/null 2>&1; then
	apt
elif command -v apk >/dev/null 2>&1; then
	apk add --no-cache docker docker-cli-buildx docker-cli-compose iptables
elif command -v dnf >/dev/null 2>&1; then
	dnf install -y moby-engine docker-cli docker-buildx docker-compose iptables-nft
else
	echo "there is neither Docker in the image nor a package manager that has it here: apt-get, apk, dnf"
	exit 65
fi
if ! installed; then
	echo "the packages are installed, but there is no dockerd or no docker in PATH ($PATH)"
	exit 1
fi

# The image's user may use Docker without being root.
want=${CLAUDE_HUB_USER%%:*}
name=
while IFS=: read -r entry _ uid _; do
	if [ "$entry" = "$want" ] || [ "$uid" = "$want" ]; then
		name=$entry
		break
	fi
done </etc/passwd
if [ -n "$name" ] && [ "$name" != root ] && grep -q '^docker:' /etc/group; then
	if command -v usermod >/dev/null 2>&1; then
		usermod -aG docker "$name"
	elif command -v addgroup >/dev/null 2>&1; then
		addgroup "$name" docker
	fi
fi
