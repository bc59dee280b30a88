// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// peer is another sandbox, used as boxd is: a program in a box that is created for it, or in a running one.
type peer struct {
	name    string
	version []string // prints its version
	// argv runs the program. first, if any, creates the box in which it runs, and last removes that.
	argv, first, last []string
	every             int // measured every that many rounds, as it takes long; 0: in all
}

// goJudge is the module of a sandbox that no distribution packages.
const goJudge, goJudgeVersion = "github.com/criyle/go-judge", "v1.12.2"

// fetchTimeout is the timeout for downloading and building it.
const fetchTimeout = 5 * time.Minute

// peersFrom is the position of the first peer in the table: peers come after boxd.
const peersFrom = 1000

// maxSlow is how rarely a peer is measured that takes tens of milliseconds.
const maxSlow = 8

// peers returns the peers to look for. Their isolation is comparable: namespaces, a read-only /usr, no network, no capabilities.
func (b *bench) peers() []peer {
	bundle := filepath.Join(b.dir, "bundle")
	root := filepath.Join(bundle, "rootfs")
	id := func(name string) string { return "bench-" + filepath.Base(b.dir) + "-" + name }
	live := filepath.Join(b.dir, "live")
	return []peer{
		{name: "bubblewrap", version: []string{"bwrap", "--version"}, argv: []string{
			"bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
			"--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
			"--cap-drop", "ALL", program,
		}},
		{name: "unshare", version: []string{"unshare", "--version"}, argv: []string{"unshare", "-UrmpniuC", "--fork", "--mount-proc", program}},
		{name: "nsjail", version: []string{"nsjail", "--help"}, argv: []string{
			"nsjail", "-Mo", "-Q", "-R", "/usr", "-s", "usr/bin:/bin", "-s", "usr/lib:/lib", "-s", "usr/lib64:/lib64", "-R", "/etc/ld.so.cache", "-T", "/tmp", "--", program,
		}},
		{name: "crun run", version: []string{"crun", "--version"}, argv: []string{"crun", "--root", b.run, "--cgroup-manager=disabled", "run", "-b", bundle, id("crun")}},
		{
			name: "crun exec, in a container that lives", version: []string{"crun", "--version"},
			first: []string{"crun", "--root", b.run, "--cgroup-manager=disabled", "run", "-d", "-b", live, id("crunlive")},
			argv:  []string{"crun", "--root", b.run, "--cgroup-manager=disabled", "exec", id("crunlive"), program}, last: []string{"crun", "--root", b.run, "delete", "-f", id("crunlive")},
		},
		{name: "runc run", version: []string{"runc", "--version"}, argv: []string{"runc", "--root", b.run, "run", "-b", bundle, id("runc")}, every: maxSlow},
		{
			name: "runc exec, in a container that lives", version: []string{"runc", "--version"}, every: maxSlow,
			first: []string{"runc", "--root", b.run, "run", "-d", "-b", live, id("runclive")}, argv: []string{"runc", "--root", b.run, "exec", id("runclive"), program}, last: []string{"runc", "--root", b.run, "delete", "-f", id("runclive")},
		},
		{name: "firejail", version: []string{"firejail", "--version"}, every: maxSlow, argv: []string{"firejail", "--quiet", "--noprofile", "--net=none", "--private-dev", "--private-tmp", "--caps.drop=all", program}},
		{name: "systemd-nspawn", version: []string{"systemd-nspawn", "--version"}, every: 4 * maxSlow, argv: []string{
			"systemd-nspawn", "-q", "--register=no", "--keep-unit", "--resolv-conf=off", "--timezone=off", "--read-only", "--private-network", "-a", "-D", root, "--bind-ro=/usr", program,
		}},
		{name: "podman run", version: []string{"podman", "--version"}, every: 4 * maxSlow, argv: []string{
			"podman", "run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "-v", "/usr:/usr:ro", "--rootfs", root, program,
		}},
	}
}

// addPeers adds the peers that are installed and work. The others are left out and listed as such.
func (b *bench) addPeers(ctx context.Context) error {
	if err := b.makeBundles(); err != nil {
		return err
	}
	for _, p := range b.peers() {
		path, err := exec.LookPath(p.argv[0])
		if err != nil {
			b.leave(p.name, "is not installed")
			continue
		}
		if p.first != nil {
			if err := exec.CommandContext(ctx, p.first[0], p.first[1:]...).Run(); err != nil { // what it has started keeps its output open
				b.leave(p.name, fmt.Sprintf("make its container: %v", err))
				continue
			}
			b.after = append(b.after, func() { _ = exec.Command(p.last[0], p.last[1:]...).Run() })
		}
		if out, err := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...).CombinedOutput(); err != nil {
			b.leave(p.name, fmt.Sprintf("%v: %s", err, firstLine(out)))
			continue
		}
		out, _ := exec.CommandContext(ctx, p.version[0], p.version[1:]...).CombinedOutput()
		b.versions = append(b.versions, p.name+": "+firstLine(out))
		if err := b.addCommand(ctx, p.name, append([]string{path}, p.argv[1:]...)...); err != nil { // the helper does not search PATH
			return err
		}
		m := b.cases[len(b.cases)-1]
		m.every, m.order = p.every, m.order+peersFrom
	}
	if err := b.addGoJudge(ctx); err != nil {
		b.leave("go-judge", err.Error())
	}
	return nil
}

func (b *bench) leave(name, why string) {
	fmt.Fprintf(os.Stderr, "bench: %s is left out: %s\n", name, why)
	b.left = append(b.left, name+": "+why)
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line
}

// makeBundles creates bundles for OCI runtimes: one of the program, and one that keeps running.
func (b *bench) makeBundles() error {
	for name, args := range map[string][]string{"bundle": {program}, "live": {"/bin/sleep", "infinity"}} {
		root := filepath.Join(b.dir, name, "rootfs")
		for _, dir := range []string{"usr", "proc", "dev", "tmp", "etc", "sys", "run", "var"} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				return err
			}
		}
		for _, dir := range []string{"bin", "lib", "lib64", "sbin"} {
			if err := os.Symlink("usr/"+dir, filepath.Join(root, dir)); err != nil {
				return err
			}
		}
		for _, file := range []string{"etc/os-release", "etc/passwd"} { // systemd-nspawn requires a system tree
			if err := os.WriteFile(filepath.Join(root, file), []byte("ID=bench\n"), 0o600); err != nil {
				return err
			}
		}
		namespaces := []map[string]string{}
		for _, kind := range []string{"pid", "mount", "network", "ipc", "uts"} {
			namespaces = append(namespaces, map[string]string{"type": kind})
		}
		text, err := json.Marshal(map[string]any{
			"ociVersion": "1.0.2", "root": map[string]any{"path": "rootfs", "readonly": true}, "hostname": "bench",
			"process": map[string]any{"user": map[string]int{"uid": 0, "gid": 0}, "args": args, "env": []string{"PATH=/usr/bin"}, "cwd": "/", "noNewPrivileges": true},
			"mounts": []map[string]any{
				{"destination": "/proc", "type": "proc", "source": "proc"},
				{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755"}},
				{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid"}},
				{"destination": "/usr", "type": "bind", "source": "/usr", "options": []string{"rbind", "ro"}},
			},
			"linux": map[string]any{"namespaces": namespaces},
		})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(b.dir, name, "config.json"), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// addGoJudge builds go-judge from its module and calls it over HTTP, on a persistent connection.
func (b *bench) addGoJudge(ctx context.Context) error {
	tree := filepath.Join(b.dir, "go-judge.tree") // a module of its own, so that its dependencies are not ours
	if err := os.Mkdir(tree, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tree, "go.mod"), []byte("module bench\n\nrequire "+goJudge+" "+goJudgeVersion+"\n"), 0o600); err != nil {
		return err
	}
	timeoutCtx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	build := exec.CommandContext(timeoutCtx, "go", "build", "-o", filepath.Join(b.dir, "go-judge"), goJudge+"/cmd/go-judge")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod")
	build.Dir = tree
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build it: %w: %s", err, firstLine(out))
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := ln.Addr().String()
	ln.Close()
	cmd := exec.Command(filepath.Join(b.dir, "go-judge"), "-http-addr", address, "-pre-fork", "4", "-parallelism", "4", "-silent")
	cmd.Dir = b.dir
	if err := cmd.Start(); err != nil {
		return err
	}
	b.daemons = append(b.daemons, cmd)
	body := []byte(`{"cmd":[{"args":["` + program + `"],"files":[{"content":""},{"name":"stdout","max":1024},{"name":"stderr","max":1024}],"cpuLimit":10000000000,"memoryLimit":1073741824,"procLimit":50}]}`)
	once := func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/run", bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err == nil && !bytes.Contains(text, []byte(`"exitStatus":0`)) {
			err = fmt.Errorf("answer %s", firstLine(text))
		}
		return err
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := once()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return errors.Join(errors.New("it does not answer"), err)
		}
	}
	b.versions = append(b.versions, "go-judge: "+goJudge+" "+goJudgeVersion)
	b.add("go-judge, over HTTP", timed(once))
	b.cases[len(b.cases)-1].order += peersFrom
	return nil
}
