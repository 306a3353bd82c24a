#!/bin/bash
# systemd_box.sh [SOURCE:TARGET...]: a throw-away machine on which the real systemd is PID 1.
#
# It sees this machine's files through an overlay: what is written inside is gone afterwards, except
# below the SOURCEs, which appear as TARGETs. None of this machine's services start in it, and it
# has no network but a loopback of its own. Prints systemd's pid (as seen from outside) when it is
# up, lives until standard input ends, and then vanishes, processes, mounts and all.
#
# Needs root, overlayfs and a cgroup v2 hierarchy (with v1 beside it or alone). Where v1 is beside it
# the box has both, so that MemoryMax= holds. tests/support/systemd_box.py is the only caller.
set -euo pipefail

hierarchies() { # the folders of the cgroup hierarchies that the box gets a part of
  if [ -d /sys/fs/cgroup/unified ]; then
    echo /sys/fs/cgroup/{unified,systemd,memory}
  else
    echo /sys/fs/cgroup
  fi
}

outside() {
  work=$(mktemp -d /var/tmp/forkq-box.XXXXXX)
  trap cleanup EXIT
  for hierarchy in $(hierarchies); do mkdir "$hierarchy/${work##*/}"; done
  # In its own cgroups when the namespaces are made, so that these are the roots seen inside. The
  # death of this script kills unshare, and the death of unshare kills the box.
  (
    for hierarchy in $(hierarchies); do echo "$BASHPID" >"$hierarchy/${work##*/}/cgroup.procs"; done
    exec setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount --uts --ipc --net \
      --cgroup --propagation private bash "$0" --inside "$work" "$@"
  ) </dev/null >"$work/log" 2>&1 &
  shell=$!
  init=$(booted) || { echo "systemd did not come up:" >&2; cat "$work/log" >&2; exit 70; }
  echo "$init"
  while read -r; do :; done # until standard input ends
}

booted() { # prints the pid of systemd once it runs, fails after 30 s or when the box is gone
  local init=
  for _ in {1..600}; do
    [ -d "/proc/$shell" ] || return 1
    init=$(tr -d ' ' <"/proc/$shell/task/$shell/children")
    if [ "$(cat "/proc/${init:-none}/comm" 2>/dev/null)" = systemd ]; then
      # unshare may not stay in what is the box's root cgroup: there, it would forbid controllers.
      for hierarchy in $(hierarchies); do echo "$shell" >"$hierarchy/cgroup.procs"; done
      case $(nsenter -t "$init" -m -p systemctl is-system-running 2>/dev/null) in
        running | degraded) echo "$init"; return 0 ;;
      esac
    fi
    sleep 0.05
  done
  return 1
}

cleanup() { # nothing in the box is worth an orderly shutdown
  set +e
  [ -z "${shell:-}" ] || kill -KILL "$shell"
  wait "${shell:-}"
  for _ in {1..100}; do # the kernel is still emptying the pid namespace
    left=
    for hierarchy in $(hierarchies); do
      find "$hierarchy/${work##*/}" -depth -type d -exec rmdir {} +
      [ ! -d "$hierarchy/${work##*/}" ] || left=yes
    done
    [ -n "$left" ] || break
    sleep 0.05
  done
  rm -rf "$work"
} 2>/dev/null

inside() { # PID 1 of the new namespaces: lays out a root folder, and becomes systemd in it
  local work=$1 root=$1/root bind
  shift
  mount -t tmpfs -o mode=755 box "$work"
  mkdir "$work/upper" "$work/scratch" "$root"
  mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/scratch" box "$root"
  mount_kernel_files "$root"
  silence_services "$root"
  for bind in "$@"; do
    mkdir -p "$root/${bind#*:}"
    mount --bind "${bind%%:*}" "$root/${bind#*:}"
  done
  ip link set lo up
  hostname box
  cd "$root"
  mkdir -p oldroot
  pivot_root . oldroot
  umount -l /oldroot
  exec env -i container=forkq PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=basic.target
}

mount_kernel_files() {
  local root=$1 device
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  mount_cgroups "$root/sys/fs/cgroup"
  mount -t tmpfs -o mode=755 dev "$root/dev"
  for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
  done
  mkdir "$root/dev/shm" "$root/dev/pts"
  mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=666 pts "$root/dev/pts"
  ln -s pts/ptmx "$root/dev/ptmx"
  mount -t tmpfs -o mode=755 run "$root/run"
  mount -t tmpfs -o mode=1777 tmp "$root/tmp"
}

mount_cgroups() {
  local root=$1
  if [ -d /sys/fs/cgroup/unified ]; then
    mount -t tmpfs -o mode=755 cgroup "$root"
    mkdir "$root/unified" "$root/systemd" "$root/memory"
    mount -t cgroup2 cgroup "$root/unified"
    mount -t cgroup -o none,name=systemd cgroup "$root/systemd"
    mount -t cgroup -o memory cgroup "$root/memory"
  else
    mount -t cgroup2 cgroup "$root"
  fi
}

silence_services() { # what this machine starts at boot is no business of the box; the journal is
  local root=$1 system=$1/etc/systemd/system
  rm -rf "$system" "$root"/lib/systemd/system/*.wants "$root"/usr/lib/systemd/system/*.wants
  mkdir -p "$system/basic.target.wants"
  ln -s /lib/systemd/system/systemd-journald.service "$system/basic.target.wants/"
  : >"$root/etc/fstab"
  echo 22222222222222222222222222222222 >"$root/etc/machine-id"
}

if [ "${1:-}" = --inside ]; then
  shift
  inside "$@"
else
  outside "$@"
fi
