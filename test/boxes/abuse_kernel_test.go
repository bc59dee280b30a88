// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

func TestT24KernelsFilesCannotBeWritten(t *testing.T) {
	attack(t, func(h *host) {
		h.each(func(b *box) {
			b.try(all("ENOENT", "list=/sys/kernel", "write=/sys/kernel/uevent_helper", "write=/proc/sys/nothing")...)
			b.try(all("EACCES|EROFS|ENOENT",
				"write=/sys/fs/cgroup/cgroup.procs", "write=/proc/sys/kernel/core_pattern", "write=/proc/sys/kernel/modprobe", "write=/proc/sys/kernel/hostname", "write=/proc/sys/vm/drop_caches",
				"write=/proc/sys/net/ipv4/ip_forward", "write=/proc/sys/fs/binfmt_misc/register", "write=/proc/sysrq-trigger", "write=/proc/mtrr",
				"write=/proc/irq/default_smp_affinity", "write=/proc/acpi/wakeup", "read=/proc/kmsg", "read=/proc/kpageflags", "read=/proc/slabinfo",
			)...)
			if got := b.sh("if [ -e /proc/kcore ]; then stat -c %t:%T /proc/kcore; fi"); got != "" && got != "1:3\n" {
				t.Errorf("/proc/kcore is device %q and not /dev/null", got)
			}
			// By mode, everybody can write these: only the read-only mount protects them.
			b.try(all("EROFS|ENOENT", "write=/proc/sys/kernel/ns_last_pid", "create=/proc/sys/x", "mkdir=/proc/sys/x")...)
			b.try(all("EACCES|EPERM|EROFS|EINVAL|ENOENT", "put=/proc/self/uid_map,0 0 1", "put=/proc/self/gid_map,0 0 1", "put=/proc/self/setgroups,allow",
				"put=/proc/self/attr/current,unconfined", "put=/proc/self/attr/exec,unconfined", "put=/proc/self/oom_score_adj,-1000")...)
			if got := b.sh("for f in /proc/*; do if [ -f $f ] && [ -w $f ]; then echo $f; fi; done"); got != "" {
				t.Errorf(`files of /proc that can be written: got %q, want ""`, got)
			}
			if got := b.sh("find /proc/sys -type f -writable 2>/dev/null || true"); got != "" {
				t.Errorf(`settings that can be written: got %q, want ""`, got)
			}
		})
	})
}

func TestT43DangerousCallsAreClosed(t *testing.T) {
	apart := true // whether this kernel identifies 32-bit calls as such, whatever their number
	attack(t, func(h *host) {
		h.each(func(b *box) {
			b.try(all("EPERM",
				"keyctl", "add_key", "request_key", "io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "bpf", "perf_event_open",
				"kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "fanotify_init", "quotactl", "open_by_handle_at",
				"projid=/workspace", "setflags=/workspace", "file_setattr=/workspace", "personality",
				"socket=vsock", "socket=packet", "socket=alg", "socket=xdp", "socket=can", "socket=key", "socket=bluetooth", "socket=tipc", "socket=rds",
				"socket=raw4", "socket=raw6", "socket=sctp", "socket=netfilter", "socket=uevent", "socket=generic", "socket=sockdiag",
			)...)
			b.try(all("ENOSYS", "vmsplice", "memfd_secret")...)
			b.try(attempt{"socket=audit", "EPROTONOSUPPORT"})
			if runtime.GOARCH != "amd64" {
				return
			}
			b.try(all("EPERM", "modify_ldt", "iopl", "ioperm")...)
			b.try(attempt{"x32", "ENOSYS"})
			// A kernel without support for 32-bit programs kills a process that makes such a call.
			r := b.exec(&api.ExecRequest{Argv: []string{probe, "try", "int80"}})
			if cpu, err := os.ReadFile("/proc/cpuinfo"); err == nil && strings.Contains(string(cpu), "User Mode Linux") {
				apart = false
				return
			}
			if shut := r.Stdout == "" && strings.Contains(r.Stderr, "SIGSEGV"); !shut && r.Stdout != "int80 ENOSYS\n" {
				t.Errorf(`int80: r = %s, want shut == true or r.Stdout == "int80 ENOSYS\n"`, boxtest.Show(r))
			}
		})
	})
	if !apart {
		boxtest.Missing(t, "a kernel that tells calls of 32 bits apart")
	}
}

func TestT45NoSocketLeadsOut(t *testing.T) {
	name := fmt.Sprintf("boxd-test-%d", os.Getpid())
	var local []string
	for _, way := range [][2]string{{"unix", "@" + name}, {"tcp4", "127.0.0.1:0"}, {"tcp6", "[::1]:0"}} {
		l, err := net.Listen(way[0], way[1])
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		local = append(local, "dial="+way[0]+","+l.Addr().String())
	}
	attack(t, func(h *host) {
		a := h.box()
		b := h.box()
		held := a.hold(probe, "listen", "@"+name+"-box", "127.0.0.1:7777")
		b.try(all("ECONNREFUSED", local...)...)
		b.try(all("ECONNREFUSED", "dial=unix,@"+name+"-box", "dial=tcp4,127.0.0.1:7777", "dial=unix,@/org/freedesktop/systemd1/notify")...)
		a.try(all("OK", "dial=unix,@"+name+"-box", "dial=tcp4,127.0.0.1:7777")...)
		b.try(all("ENETUNREACH", "send=udp4,224.0.0.1:5353", "send=udp4,255.255.255.255:67")...)
		b.try(all("ENOENT", "dial=unix,"+h.Socket, "dial=unix,/run/boxd/boxd.sock", "dial=unix,/run/dbus/system_bus_socket", "dial=unix,/run/systemd/notify")...)
		held.Release()
		// System V objects and POSIX queues are private to a box too.
		a.try(attempt{"shmget=4242,create", "OK"}, attempt{"mq=/known,create", "OK"})
		a.try(attempt{"shmget=4242", "OK"}, attempt{"mq=/known", "OK"})
		b.try(attempt{"shmget=4242", "ENOENT"}, attempt{"mq=/known", "ENOENT"})
	})
}

func TestT46NobodysTerminalIsTypedInto(t *testing.T) {
	attack(t, func(h *host) {
		h.each(func(b *box) {
			b.try(all("ENXIO", "read=/dev/tty", "write=/dev/tty")...)
			if got := b.sh("for n in 0 1 2; do if [ -t $n ]; then echo terminal; fi; done; tty || true"); got != "not a tty\n" {
				t.Errorf(`a program without a terminal has %q, want "not a tty\n"`, got)
			}
			for _, call := range []string{"tiocsti", "tiocsti_high", "tioclinux", "tiocsetd", "vhangup"} {
				b.try(attempt{call, "EPERM"})
			}
		})
	})
}

func TestT48TheMachineIsNotTheBoxs(t *testing.T) {
	attack(t, func(h *host) {
		name, err := os.Hostname()
		if err != nil {
			t.Fatal(err)
		}
		h.each(func(b *box) {
			own := b.run("uname", "-n")
			b.try(all("EPERM",
				"clock_settime", "settimeofday", "adjtimex", "clock_adjtime", "sethostname", "setdomainname", "reboot", "swapon", "swapoff", "syslog", "acct",
			)...)
			if now := b.run("uname", "-n"); now != own {
				t.Errorf("the box is called %q, was %q, want now == own", now, own)
			}
		})
		if now, err := os.Hostname(); err != nil || now != name {
			t.Errorf("the host is called %q, was %q, %v, want no error and now == name", now, name, err)
		}
	})
}

func TestT59AnyTextIsAnIDAndNoneIsAPath(t *testing.T) {
	attack(t, func(h *host) {
		for _, id := range []string{"a\x00b", "\x00", "a\nb", "\x1b[31m", "\x7f", "a\u0085b", strings.Repeat("x", 257)} {
			_, _, err := h.CreateSession(t.Context(), &api.SessionRequest{ID: id})
			refused(t, err, 400, "id", "1 to 256 bytes")
		}
		ids := []string{
			"/", "..", ".", "../..", "a/../b", "/etc/passwd", "%2f", "%2F", "%", "%00", "a b", " ", "a?b", "a#b", "a;b", "a\\x2fb", "-", "--", "*", "日本",
			"box@1.service", "sessions", "a/", "/a", "a", strings.Repeat("é", 128), "~", "$HOME", "{id}", "a&owner=uid:1",
		}
		seen := map[string]string{}
		for _, id := range ids {
			b := h.box(func(r *api.SessionRequest) { r.ID = id })
			s, err := h.Session(t.Context(), id)
			if err != nil || s.ID != id || s.PID != b.PID {
				t.Errorf("%q: its session is %q of %d, not %d: %v", id, s.ID, s.PID, b.PID, err)
			}
			b.sh("echo here > /workspace/mark")
			if other, dup := seen[fmt.Sprint(b.PID)]; dup {
				t.Errorf("%q and %q are one session", id, other)
			}
			seen[fmt.Sprint(b.PID)] = id
		}
		for _, sub := range []string{"sessions", "workspaces"} {
			files, err := filepath.Glob(filepath.Join(h.State, sub, "*"))
			if err != nil || len(files) != len(ids)+1 { // plus the box next to them
				t.Errorf("%d in %s for %d sessions, %v", len(files), sub, len(ids), err)
			}
			for _, f := range files {
				if name := strings.TrimSuffix(filepath.Base(f), ".json"); len(name) != 32 || slices.Contains(ids, name) {
					t.Errorf("f = %s, want len(name) == 32 and ids without %v", f, name)
				}
			}
		}
	})
}
