"""The script that a rented computer runs as root when it boots, the same for every cloud.

It holds the values of a `Boot` and nothing of the user's, so it neither grows nor needs quoting.
When a step fails, the computer powers itself off: a machine that cannot work must not cost.
"""

from __future__ import annotations

from math import ceil
from string import Template

from scavenger.worker_env import POWER_OFF_DELAY
from service.clouds.provider import Boot

TICKS_PER_SECOND = 100  # of /proc/uptime, and of the file with the deadline


def render_boot_script(boot: Boot) -> str:
    """Return the user data (EC2) or start-up script (Google) of a machine.

    Raises:
        ValueError: The boot names no package of the agent.
    """
    if boot.agent is None:
        raise ValueError(f"{boot.worker} is to be rented, and its boot names no agent package")
    environment = "\n".join(f"export {name}='{text}'" for name, text in boot.environment.items())
    return SCRIPT.substitute(
        environment=environment,
        ticks=ceil((boot.prepaid + POWER_OFF_DELAY) * TICKS_PER_SECOND),
        agent=boot.agent,
        ca=boot.ca or "",
    )


# 1. The timer comes first and outlives the rest: it ignores signals, is no victim when memory runs
#    out, lives in no process group that the supervisor kills, and ends the computer even when it
#    can start no process any more (exec).
# 2. Both clouds refuse each other's questions at once; another network falls back to the address
#    from which this computer reaches the controller.
# 3. A virtual environment sees the packages of the image. Unpacking the wheel takes a tenth of the
#    time that pip takes, and the image needs none.
# 4. A supervisor of a second boot is refused, as its token is used.
SCRIPT = Template(r"""#!/bin/sh
set -u
umask 077
$environment
agent=$agent ca=$ca
off() {
  echo "scavenger: $$1: powering off"
  while :; do poweroff -f; systemctl poweroff; shutdown -h now; sleep 1; done
}
trap 'off "the script has ended"' EXIT
root=$${SCAVENGER_ROOT:-} run=$${SCAVENGER_ROOT:-}/run/scavenger
now() { read -r up _ </proc/uptime && now=$$(($${up%.*} * 100 + 1$${up#*.} - 100)); }
mkdir -p "$$run" && now && echo $$((now + $ticks)) >"$$run/deadline" || exit
(
  trap '' HUP INT QUIT PIPE ALRM TERM USR1 USR2
  trap 'exec poweroff -f' EXIT
  echo -1000 2>/dev/null >/proc/self/oom_score_adj
  while now && read -r end <"$$run/deadline" && [ "$$now" -lt "$$end" ]; do sleep 1; done
  off 'the paid time is over'
) &

ask() { curl -sf -m 3 --noproxy '*' "$$@"; }
aws=$${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}
google=http://$${GCE_METADATA_HOST:-169.254.169.254}/computeMetadata/v1/instance
id= host= kind=
if key=$$(ask -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$${aws%/}/latest/api/token")
then
  ours() { ask -H "X-aws-ec2-metadata-token: $$key" "$${aws%/}/latest/meta-data/$$1"; }
  id=$$(ours instance-id) host=$$(ours local-ipv4) kind=aws
elif id=$$(ask -H 'Metadata-Flavor: Google' "$$google/id"); then
  host=$$(ask -H 'Metadata-Flavor: Google' "$$google/network-interfaces/0/ip") kind=google
fi

controller=$${SCAVENGER_CONTROLLER%/} tls= login=
fetch() {
  while :; do
    told=$$(echo "$$login" | curl -s -m 60 --noproxy '*' -K - $$tls -o "$$2" \
      -w '%{http_code} %{local_ip}' "$$controller/v1/agent/$$1")
    case $$told in
      200*) break ;;
      40[0134]*) off "the controller refuses $$1: $$told" ;;
    esac
    echo "scavenger: no $$1 yet: $$told"
    sleep 2
  done
  echo "$$3  $$2" | sha256sum -c - || off "$$1 is not what this machine was launched for"
}
if [ "$$ca" ]; then
  tls=-k
  fetch ca "$$run/ca.pem" "$$ca"
  export SCAVENGER_CA="$$run/ca.pem"
  tls="--cacert $$run/ca.pem"
fi

home=$$root/opt/scavenger venv=$$root/opt/scavenger/$$agent
mkdir -p "$$home/work" || exit
if [ ! -e "$$venv/ready" ] || [ -z "$$host" ]; then
  login="header = \"Authorization: Bearer $$SCAVENGER_TOKEN\""
  fetch package "$$run/agent.whl" "$$agent"
  host=$${host:-$${told#* }}
fi
if [ ! -e "$$venv/ready" ]; then
  python3 -m venv --clear --without-pip --system-site-packages "$$venv" &&
    python3 -m zipfile -e "$$run/agent.whl" "$$venv"/lib/python3.*/site-packages &&
    printf '#!%s\nfrom scavenger.cli import main\nmain()\n' "$$venv/bin/python" \
      >"$$venv/bin/scavenger" && chmod 700 "$$venv/bin/scavenger" &&
    : >"$$venv/ready" || off 'the agent cannot be installed'
fi
case $$host in '' | *[!0-9a-fA-F.:]*) off "no address: $$host" ;; esac
echo "scavenger: machine $$id at $$host, agent $$agent"

export SCAVENGER_HOST="$$host" SCAVENGER_DEADLINE_FILE="$$run/deadline" SCAVENGER_OWNS_COMPUTER=1
export SCAVENGER_SPOOL="$$home/spool" SCAVENGER_CODE="$$home/code" SCAVENGER_METADATA="$$kind"
export HOME="$${HOME:-/root}" PATH="$$venv/bin:$$PATH"
umask 022
cd "$$home/work" && python -P -m worker_agent.supervisor
off 'the supervisor has ended'
""")
