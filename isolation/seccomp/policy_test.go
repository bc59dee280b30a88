// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// A new call in golang.org/x/sys needs a decision, even if the answer is ENOSYS as for every
// unlisted number.
func TestTheSeccompPolicyDecidesEverySyscall(t *testing.T) {
	rules, err := parse(Default())
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range syscalls {
		if rules[row.name] == nil {
			t.Errorf("policy.txt has no line about %s", row.name)
		}
	}
}

func TestPolicyReasons(t *testing.T) {
	line := 0
	for text := range strings.Lines(Default()) {
		line++
		body, reason, _ := strings.Cut(text, "#")
		if strings.TrimSpace(body) != "" && len(strings.TrimSpace(reason)) < 10 {
			t.Errorf("policy.txt line %d: %q is no reason", line, strings.TrimSpace(reason))
		}
	}
}

// Every line must decide some call: a line that cannot is a mistake.
func TestPolicyLinesAllCount(t *testing.T) {
	rules, err := parse(Default())
	if err != nil {
		t.Fatal(err)
	}
	for name, all := range rules {
		used := map[int]bool{}
		for _, o := range []Options{{}, {HostWritable: true}, {AIO: true}, {Root: true}} {
			valid := inForce(all, &o)
			for _, args := range variants(all, everything) {
				i, _ := expect(valid, args)
				used[valid[i].line] = true
			}
		}
		for _, r := range all {
			if !used[r.line] {
				t.Errorf("policy.txt line %d never decides %s", r.line, name)
			}
		}
	}
}

// What must stay forbidden with any arguments, however the policy changes.
func TestTheSeccompPolicyForbidsDangerousSyscalls(t *testing.T) {
	closed := strings.Fields(`
		mount umount2 move_mount fsopen fsconfig fsmount fspick open_tree open_tree_attr mount_setattr
		pivot_root chroot unshare bpf perf_event_open userfaultfd
		io_uring_setup io_uring_enter io_uring_register kexec_load kexec_file_load
		init_module finit_module delete_module keyctl add_key request_key reboot swapon swapoff syslog
		settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname acct
		quotactl quotactl_fd iopl ioperm modify_ldt lookup_dcookie open_by_handle_at fanotify_init
		vhangup nfsservctl file_setattr`)
	rules, err := parse(Default())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range closed {
		all := rules[name]
		if len(all) != 1 || all[0].where != "" || all[0].verdict != unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM) {
			t.Errorf("%s must answer EPERM and nothing else", name)
		}
	}
}

// Namespaces are entered in boxes with a root user alone, and no other than a user namespace, which its owner alone can enter.
func TestPolicyLetsNamespacesBeEnteredForRootAlone(t *testing.T) {
	rules, err := parse(Default())
	if err != nil {
		t.Fatal(err)
	}
	all := rules["setns"]
	for _, root := range []bool{false, true} {
		for _, hostWritable := range []bool{false, true} {
			valid := inForce(all, &Options{Root: root, HostWritable: hostWritable})
			for _, kind := range []uint64{0, unix.CLONE_NEWUSER, unix.CLONE_NEWNS, unix.CLONE_NEWPID, unix.CLONE_NEWNET, unix.CLONE_NEWIPC, unix.CLONE_NEWUTS, unix.CLONE_NEWCGROUP, unix.CLONE_NEWTIME, unix.CLONE_NEWUSER | unix.CLONE_NEWNS} {
				_, verdict := expect(valid, [6]uint64{3, kind})
				if want := root && kind == unix.CLONE_NEWUSER; (verdict == unix.SECCOMP_RET_ALLOW) != want {
					t.Errorf("setns of %#x, root %v: verdict = %#x, want (verdict == unix.SECCOMP_RET_ALLOW) == want",
						kind, root, verdict)
				}
			}
		}
	}
}

// What must stay allowed, or programs and boxinit's way of starting them break.
func TestTheSeccompPolicyAllowsNeededSyscalls(t *testing.T) {
	open := strings.Fields(`
		clone3 vfork execve execveat setuid setgid setgroups setresuid setresgid setfsuid setfsgid
		capget capset prctl seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self
		ptrace splice fallocate epoll_pwait2 signalfd4 pidfd_open pidfd_send_signal waitid
		faccessat2 statx close_range rseq membarrier sched_setaffinity futex futex_waitv
		inotify_add_watch io_submit semop msgsnd mq_open exit_group rt_sigreturn restart_syscall`)
	rules, err := parse(Default())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range open {
		if all := rules[name]; len(all) != 1 || all[0].verdict != unix.SECCOMP_RET_ALLOW {
			t.Errorf("%s must be allowed whatever its arguments are", name)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ policy, want string }{
		{"allow read # r\nallow write\n", "line 2: no reason given after #"},
		{"allow read #  ", "line 1: no reason"},
		{"# prose\n\nallow reed # r", `line 3: unknown system call "reed"`},
		{"permit read # r", `line 1: want allow or deny, not "permit"`},
		{"hostrw # r", "line 1: want allow NAME"},
		{"allow # r", "line 1: want allow NAME"},
		{"deny read # r", `line 1: want deny NAME... ERRNO, not "read"`},
		{"deny EPERM # r", "line 1: want deny NAME... ERRNO"},
		{"allow read # r\ndeny read EPERM # r", "line 2: read is decided in line 1 already"},
		{"allow read read # r", "line 1: read is decided in line 1 already"},
		{"allow read # r\nhostrw deny read EPERM # r", "line 2: read is decided in line 1 already"},
		{"hostrw deny read EPERM # r\nhostrw allow read # r", "line 2: read is decided in line 1 already"},
		{"allow socket when arg0 == 1 # r", "line 1: socket needs a last line without when"},
		{"hostrw deny socket EPERM # r\nallow socket when arg0 == 1 # r", "line 2: socket needs a last line"},
		{"hostrw deny socket EPERM when arg0 == 1 # r", "line 1: socket needs a last line"},
		{"allow socket when # r", "line 1: no test after when"},
		{"allow socket when arg0 == 1 and # r", "line 1: no test after and"},
		{"allow socket when and # r", "line 1: "},
		{"allow socket when arg6 == 1 # r", `line 1: want arg0 to arg5, not "arg6"`},
		{"allow socket when arg0 = 1 # r", `line 1: want ==, != or in, not "="`},
		{"allow socket when arg0 == 1 2 # r", "line 1: == takes one value"},
		{"allow socket when arg0 & 1 == # r", "line 1: no value"},
		{"allow socket when arg0 & 0 == 0 # r", "line 1: mask \"0\" is empty"},
		{"allow socket when arg0 & 1 == 2 # r", `line 1: value "2" has bits the mask takes away`},
		{"allow socket when arg0 in AF_UNIX AF_MOON # r", `line 1: "AF_MOON" is neither`},
		{"allow socket when arg0 == 0x100000000 # r", "line 1: \"0x100000000\" is neither"},
		{"allow chmod when arg1 == 0x10000 # r", `line 1: value "0x10000" has bits`},
		{"allow chmod when arg1 & 0x10000 != 0 # r", "line 1: mask \"0x10000\" is empty or outside"},
		{"allow mmap when arg2 == 0 # r", "line 1: arg2 of mmap is not in the list"},
		{"allow socket when arg0 in" + strings.Repeat(" 1", 65) + " # r", "line 1: 65 values"},
	} {
		_, err := Compile(c.policy, Options{Arch: "amd64"})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: error %v, want %s", c.policy, err, c.want)
		}
	}
	if _, err := Compile(Default(), Options{Arch: "riscv64"}); err == nil {
		t.Error("no error for the unsupported architecture riscv64")
	}
}

func TestTooLong(t *testing.T) {
	line := "deny ioctl EPERM when arg1 in" + strings.Repeat(" 1", 64) + " # r\n"
	_, err := Compile(strings.Repeat(line, 70)+"allow ioctl # r", Options{Arch: "amd64"})
	if err == nil || !strings.Contains(err.Error(), "the kernel takes 4096") {
		t.Errorf("error %v", err)
	}
}

// The tables of names serve both architectures, so the values must agree.
func TestConstantsAgree(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		boxtest.Missing(t, "the go command, to find golang.org/x/sys")
	}
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^\s*(\w+)\s*=\s*(?:syscall\.Errno\()?(0x[0-9a-f]+)\)?$`)
	for _, archName := range []string{"amd64", "arm64"} {
		values := map[string]uint64{}
		for _, file := range []string{"zerrors_linux.go", "zerrors_linux_" + archName + ".go"} {
			source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), file))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range line.FindAllSubmatch(source, -1) {
				values[string(m[1])], _ = strconv.ParseUint(string(m[2]), 0, 64)
			}
		}
		for _, n := range slices.Concat(errnos[:], constants[:]) {
			if v, ok := values[n.name]; ok && v != uint64(n.value) {
				t.Errorf("%s is %#x on %s, %#x in names.go", n.name, v, archName, n.value)
			}
		}
		if values["O_CREAT"] == 0 || values["EPERM"] == 0 || values["FS_IOC_SETFLAGS"] == 0 {
			t.Errorf("the lists of %s were not understood", archName)
		}
	}
}

func TestTablesAreSorted(t *testing.T) {
	names := make([]string, 0, len(syscalls))
	for _, row := range syscalls {
		names = append(names, row.name)
	}
	if !slices.IsSorted(names) {
		t.Error("findSyscall needs syscalls.go sorted")
	}
	for _, k := range usedArgBits {
		if _, ok := findSyscall(k.name); !ok {
			t.Errorf("usedArgBits speaks of %s", k.name)
		}
	}
}
