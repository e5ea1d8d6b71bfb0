#!/usr/bin/env bash
# Installs what the build, the demo and the tests need and this machine lacks. Quick and quiet when nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.13.0
needed=(g++ cmake ninja-build python3-venv libspdlog-dev libcli11-dev libyaml-cpp-dev nlohmann-json3-dev libgtest-dev libgmock-dev libssl-dev libxxhash-dev)
# What one target of the Makefile alone needs.
read -ra also <<<"${SETUP_ALSO:-}"
needed+=(${also[@]+"${also[@]}"})
# Without these the build is slower, or a picture, a test or the tracker of MLflow is left out and says so.
read -ra also_wished <<<"${SETUP_WISHED:-}"
wished=(ccache mold gnuplot-nox libcurl4-openssl-dev openmpi-bin libopenmpi-dev bible-kjv ${also_wished[@]+"${also_wished[@]}"})

missing() {  # prints those of its arguments that are not installed
  local installed
  installed=$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' "$@" 2>/dev/null | awk '$1 == "ii" {print $2}') || true  # it fails where one is unknown
  for package in "$@"; do grep -qxF -- "$package" <<<"$installed" || echo "$package"; done
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    for tool in cmake ninja python3; do
      command -v $tool >/dev/null || { echo "setup: $tool is missing; install what Debian calls: ${needed[*]}" >&2; exit 1; }
    done
    return
  fi
  local need wish
  mapfile -t need < <(missing "${needed[@]}")
  mapfile -t wish < <(missing "${wished[@]}")
  [ $((${#need[@]} + ${#wish[@]})) -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ]; then
    local command="sudo apt-get install -y ${need[*]} ${wish[*]}"
    if [ ${#need[@]} -gt 0 ]; then
      echo "setup: system packages are missing and only root can install them. Please run" >&2
      echo "  $command" >&2
      exit 1
    fi
    echo "setup: going on without ${wish[*]} (to have them: $command)"
    return
  fi
  echo "setup: installing ${need[*]} ${wish[*]}"
  export DEBIAN_FRONTEND=noninteractive
  local log; log=$(mktemp)
  apt-get update -qq >"$log" 2>&1 || true
  if ! apt-get install -y -qq --no-install-recommends "${need[@]}" "${wish[@]}" >>"$log" 2>&1; then
    if [ ${#need[@]} -gt 0 ] && ! apt-get install -y -qq --no-install-recommends "${need[@]}" >>"$log" 2>&1; then
      tail -n 20 "$log" >&2
      echo "setup: apt-get could not install ${need[*]}" >&2
      exit 1
    fi
    echo "setup: going on without some of: ${wish[*]}"
  fi
  rm -f "$log"
}

installed_python() {  # NAME VERSION: is this package in .venv (any version if none is given)?
  compgen -G ".venv/lib/python3*/site-packages/$1-${2:-*}*.dist-info" >/dev/null
}

pip_install() {
  [ -x .venv/bin/pip ] || python3 -m venv .venv
  .venv/bin/python -m pip install -qq --disable-pip-version-check "$@" || {
    echo "setup: pip could not install: $*" >&2
    exit 1
  }
}

install_python() {
  if [ -z "${TORCH:-}" ] && ! installed_python torch $torch_version; then
    echo "setup: installing LibTorch $torch_version into .venv (pip package torch; 200 MB to 3 GB)"
    pip_install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch==$torch_version"
  fi
  local package wanted=()
  for package in "$@"; do installed_python ${package/==/ } || wanted+=("$package"); done
  [ ${#wanted[@]} -eq 0 ] || { echo "setup: installing ${wanted[*]} into .venv"; pip_install "${wanted[@]}"; }
}

install_wished_python() {  # what a test does without, and says so
  local package
  for package in "$@"; do
    installed_python ${package/==/ } && continue
    echo "setup: installing $package into .venv"
    .venv/bin/python -m pip install -qq --disable-pip-version-check "$package" || echo "setup: going on without $package"
  done
}

# Both at once where apt is ours to call and pip can do without what it brings.
if [ "$(id -u)" = 0 ] && python3 -c 'import ensurepip' 2>/dev/null; then install_packages & packages=$!
else install_packages; packages=
fi
install_python numpy safetensors clang_format==16.0.6 "$@"
install_wished_python clang_tidy==16.0.4
wait $packages
