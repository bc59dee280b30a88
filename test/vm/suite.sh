#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Puts the packages and the tests together for a virtual machine, which has neither Go nor the source: those of
# the packages, and those of real boxes and of the host, which run the installed programs.
# Usage: suite.sh DIRECTORY; ARCH=arm64 and SELINUX=1 are for machines of that kind, as in vm.sh.
set -euo pipefail
dir=${1:?usage: suite.sh DIRECTORY} arch=${ARCH:-amd64}
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0
mkdir -p "$dir/bin" "$dir/packages"
# The build under test, and one that came before it.
for format in deb rpm; do
	mv "$(packaging/build.sh $format $arch "$dir/packages")" "$dir/packages/boxd.$format"
	mv "$(VERSION=0.0.1~previous packaging/build.sh $format $arch "$dir/packages")" "$dir/packages/boxd-previous.$format"
done
version=$(packaging/version.sh)
export GOARCH=$arch
go build -o "$dir/bin/" ./test/boxes/probe ./test/survival/mcpserver
for pkg in test/install test/host test/limits test/boxes test/sessions test/images test/abuse test/survival test/network test/api test/langbot cmd/boxctl; do
	mkdir -p "$dir/$pkg"
	# The boxctl that is in a test is of the version that is installed.
	go test -c -ldflags "-X github.com/boxd-dev/boxd/cmd/boxctl.version=$version" -o "$dir/$pkg/test" "./$pkg"
	if [ -d "$pkg/testdata" ]; then cp -r "$pkg/testdata" "$dir/$pkg/"; fi
done
cp box.toml test/again.sh test/vm/everyday "$dir/"
mkdir "$dir/packaging" && cp -r packaging/man packaging/completion packaging/selinux "$dir/packaging/"
mkdir "$dir/systemd" && cp -r systemd/units "$dir/systemd/"
cat >"$dir/run" <<'RUN'
#!/usr/bin/env bash
# npx, npm, pip, curl and all of Python are not in the machine; their tests run on the host.
set -u
[ ! -e soak ] || export SOAK=1
export BOXD_TEST_STRICT=1 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export SURVIVAL_KILLS=20 ABUSE_FLOOD_SHARE=50 # an emulated machine takes seconds for a kill, minutes for a flood
[ -e whole ] || export SURVIVAL_KILLS=8
status=0
if [ -e selinux ]; then # the module as boxd.te says; dpkg gives files of packages their labels
	[ "$(getenforce)" = Enforcing ] || { echo 'SELinux does not enforce'; exit 1; }
	# In /tmp: semodule may not read /suite, which the policy does not know.
	(cp packaging/selinux/boxd.* /tmp && cd /tmp && checkmodule -M -m -o boxd.mod boxd.te && semodule_package -o boxd.pp -m boxd.mod -f boxd.fc && semodule -i boxd.pp) &&
		restorecon -R /var/lib/boxd || exit 1
fi
some() { [ -e whole ] || sed -n "s,^$1/,^,p" everyday | paste -sd'|'; }
echo '== test/install'
only=$(some test/install)
(cd test/install && BOXD_TEST_PACKAGES=$OLDPWD/packages ../../again.sh ./test -test.run "$only" -test.timeout 60m -test.run) || status=1
# All others run the installed programs, each with a boxd of its own.
apt-get -qq -y --allow-downgrades install "$PWD/packages/boxd.deb" >/dev/null || exit 1
systemctl stop boxd.socket boxd.service boxd-keeper.service boxd-boxes.service # and boxes that a test has left
for program in /usr/lib/boxd/* /usr/bin/boxctl; do ln -s "$program" bin/; done
export BOXD_TEST_BIN=$PWD/bin
echo "== test/host, after $SECONDS s"
only=$(some test/host)
[ -e selinux ] || (cd test/host && ../../again.sh ./test -test.run "$only" -test.timeout 60m -test.run) || status=1
# Boxes have control groups here, below an anchor like that of the package. The tests above stop its slice.
systemd-run -q --unit=boxd-test --slice=box.slice -p Type=exec -p Delegate=yes -p TasksMax=infinity -p OOMPolicy=continue /usr/lib/boxd/boxkeeper anchor || exit 1
export BOXD_TEST_CGROUP=box.slice/boxd-test.service
for pkg in test/limits test/boxes test/sessions test/images test/abuse test/survival test/network test/api test/langbot cmd/boxctl; do
	echo "== $pkg, after $SECONDS s"
	# Only the second disk keeps project quotas.
	if [ $pkg = test/limits ]; then export TMPDIR=/var/lib/boxd; else unset TMPDIR; fi
	only=$(some "$pkg")
	[ -n "$only" ] || [ ! -e selinux ] || continue
	(cd "$pkg" && ../../again.sh ./test -test.run "$only" -test.skip 'TestPipInstalls|TestNpmInstalls|TestDependenciesCome|TestTheGuideIsTrue|TestCommandsOfTheGuide|TestAClientInPython|TestTheInspectorDoesATask|TestReferenceServersRunInBoxes|TestADistributionIsPulledAndRuns' -test.timeout 60m -test.run) || status=1
done
if [ -e selinux ]; then
	denied=$(journalctl -b --no-pager -o cat | grep -E 'avc: +denied' | grep -E 'comm="(box|probe)|boxd')
	[ -z "$denied" ] || { printf '== denied by SELinux\n%s\n' "$denied"; status=1; }
fi
echo "== all, after $SECONDS s"
exit $status
RUN
chmod +x "$dir/run"
if [ -n "${SOAK:-}" ]; then touch "$dir/soak"; fi
if [ -n "${WHOLE:-}" ]; then touch "$dir/whole"; fi
if [ -n "${SELINUX:-}" ]; then
	touch "$dir/selinux"
	cat >"$dir/everyday" <<'EVERYDAY'
test/install/TestAFreshInstallation
test/install/TestAnInstalledBoxdDoesAllItCan
test/install/TestRemovalAndPurge
test/boxes/TestT[0-9]
test/sessions/TestAnAgentWorksOnFiles
test/sessions/TestALivingSessionIsGivenMounts
test/sessions/TestASessionInABoxAheadOfNeedOutlivesBoxd
test/images/TestARootThatCanBeWrittenTo
test/survival/TestNothingIsLostWhenTheKeeperIsKilled
test/network/TestABoxReachesNamesAndNothingElse
cmd/boxctl/TestAShellInABoxHasTheTerminal
EVERYDAY
fi
