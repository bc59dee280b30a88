// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// valid returns a specification with nothing wrong in it.
func valid() Spec {
	return Spec{
		Key: strings.Repeat("a1", KeyLen/2), Hostname: "box-1",
		Caller:      Caller{UID: 1000, GID: 1000, Groups: []uint32{27, 100}},
		Scratch:     Scratch{Bytes: MinScratch, Inodes: 64},
		Rlimits:     []Rlimit{{Resource: 7, Soft: 1024, Hard: 4096}},
		ManagedWork: true,
		Mounts: []Mount{
			{Source: "/home/u/in", Target: "/data/in"},
			{Source: "/home/u/out", Target: "/workspace/out", Writable: true},
		},
	}
}

func TestValidateNamesTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		spoil func(*Spec)
		want  string // field of the refusal; "": it is valid
	}{
		{"nothing", func(*Spec) {}, ""},
		{"root caller names an owner", func(s *Spec) { s.Caller.UID, s.Mounts[0].Owner = 0, 1500 }, ""},
		{"a scope", func(s *Spec) { s.Grouped, s.Scope = true, "/sys/fs/cgroup/box.slice/"+ScopeOf(s.Key) }, ""},
		{"a scope without groups", func(s *Spec) { s.Scope = "/sys/fs/cgroup/box.slice/" + ScopeOf(s.Key) }, "scope"},
		{"another box's scope", func(s *Spec) {
			s.Grouped, s.Scope = true, "/sys/fs/cgroup/box.slice/"+ScopeOf(strings.Repeat("b", KeyLen))
		}, "scope"},
		{"a scope elsewhere", func(s *Spec) { s.Grouped, s.Scope = true, "/sys/fs/cgroups/"+ScopeOf(s.Key) }, "scope"},
		{"a scope by detours", func(s *Spec) { s.Grouped, s.Scope = true, "/sys/fs/cgroup/../cgroup/"+ScopeOf(s.Key) }, "scope"},
		{"a scope's name in another", func(s *Spec) { s.Grouped, s.Scope = true, "/sys/fs/cgroup/x"+ScopeOf(s.Key) }, "scope"},
		{"a relative scope", func(s *Spec) { s.Grouped, s.Scope = true, "sys/fs/cgroup/"+ScopeOf(s.Key) }, "scope"},
		{"every root as a target", func(s *Spec) {
			s.ManagedWork, s.Mounts = false, nil
			for _, r := range Roots() {
				s.Mounts = append(s.Mounts, Mount{Source: "/x", Target: r})
			}
		}, ""},
		{"spaces", func(s *Spec) {
			s.ManagedWork, s.Space, s.Work, s.Mounts = true, s.Key, Quota{}, nil
			s.Lent = []string{s.Key + "/mnt/a", s.Key + "/data"}
		}, ""},
		{"a space with a quota of the box", func(s *Spec) { s.ManagedWork, s.Space, s.Work, s.Mounts = true, s.Key, Quota{1, 1}, nil }, "workspace"},
		{"a space beside a mount", func(s *Spec) { s.ManagedWork, s.Space, s.Work = false, s.Key, Quota{} }, "workspace"},
		{"a space that is a path", func(s *Spec) {
			s.ManagedWork, s.Space, s.Work, s.Mounts = true, strings.Repeat("../", KeyLen/3)+"aa", Quota{}, nil
		}, "workspace"},
		{"a writable root", func(s *Spec) { s.ManagedWork, s.Writable, s.Image, s.Work = false, true, "tree", Quota{1, 1} }, ""},
		{"a writable root of the host", func(s *Spec) { s.Writable, s.Image = true, "" }, ""},
		{"a writable root with too many mounts", func(s *Spec) { s.Writable, s.Mounts = true, mounts(MaxMounts-rootMounts+1) }, "read_only_root"},
		{"a writable root beside a space", func(s *Spec) {
			s.ManagedWork, s.Writable, s.Image, s.Space, s.Work, s.Mounts = true, true, "tree", s.Key, Quota{1, 1}, nil
		}, ""},
		{"an input that is a path", func(s *Spec) { s.Lent = []string{strings.Repeat("../", KeyLen/3) + "aa/mnt/x"} }, "inputs"},
		{"an input without a target", func(s *Spec) { s.Lent = []string{s.Key} }, "inputs"},
		{"an input that is nothing", func(s *Spec) { s.Lent = []string{""} }, "inputs"},
		{"an input of the image", func(s *Spec) { s.Lent = []string{s.Key + "/usr/lib"} }, "inputs"},
		{"an input in the workspace", func(s *Spec) { s.Lent = []string{s.Key + "/workspace/x"} }, "inputs"},
		{"inputs on one target", func(s *Spec) { s.Lent = []string{s.Key + "/mnt/x", s.Key + "/mnt/x"} }, "inputs"},
		{"too many inputs", func(s *Spec) {
			for i := range MaxLent + 1 {
				s.Lent = append(s.Lent, s.Key+"/mnt/x"+strconv.Itoa(i))
			}
		}, "inputs"},
		{"most mounts", func(s *Spec) { s.Mounts = mounts(MaxMounts) }, ""},
		{"longest path", func(s *Spec) { s.Mounts[0].Source = strings.Repeat("/"+strings.Repeat("a", 14), MaxPath/15) }, ""},
		{"no key", func(s *Spec) { s.Key = "" }, "key"},
		{"short key", func(s *Spec) { s.Key = s.Key[1:] }, "key"},
		{"key is a path", func(s *Spec) { s.Key = strings.Repeat("../", KeyLen/3) + "aa" }, "key"},
		{"key in capitals", func(s *Spec) { s.Key = strings.ToUpper(s.Key) }, "key"},
		{"no hostname", func(s *Spec) { s.Hostname = "" }, "hostname"},
		{"hostname with a dot", func(s *Spec) { s.Hostname = "a.b" }, "hostname"},
		{"hostname with a newline", func(s *Spec) { s.Hostname = "a\nb" }, "hostname"},
		{"hostname begins with a hyphen", func(s *Spec) { s.Hostname = "-a" }, "hostname"},
		{"hostname ends with a hyphen", func(s *Spec) { s.Hostname = "a-" }, "hostname"},
		{"long hostname", func(s *Spec) { s.Hostname = strings.Repeat("a", MaxHostname+1) }, "hostname"},
		{"little scratch", func(s *Spec) { s.Scratch.Bytes = MinScratch - 1 }, "tmp"},
		{"few inodes", func(s *Spec) { s.Scratch.Inodes = 63 }, "tmp"},
		{"many mounts", func(s *Spec) { s.Mounts = mounts(MaxMounts + 1) }, "mounts"},
		{"many groups", func(s *Spec) { s.Caller.Groups = make([]uint32, MaxGroups+1) }, "caller groups"},
		{"relative source", func(s *Spec) { s.Mounts[1].Source = "home" }, "mounts[1].source"},
		{"source with a dot", func(s *Spec) { s.Mounts[1].Source = "/home/./x" }, "mounts[1].source"},
		{"source upwards", func(s *Spec) { s.Mounts[1].Source = "/home/../etc" }, "mounts[1].source"},
		{"source with a slash at the end", func(s *Spec) { s.Mounts[1].Source = "/home/" }, "mounts[1].source"},
		{"source with NUL", func(s *Spec) { s.Mounts[1].Source = "/home\x00/x" }, "mounts[1].source"},
		{"long source", func(s *Spec) { s.Mounts[1].Source = strings.Repeat("/"+strings.Repeat("a", 14), MaxPath/15+1) }, "mounts[1].source"},
		{"no target", func(s *Spec) { s.Mounts[0].Target = "" }, "mounts[0].target"},
		{"target is the root", func(s *Spec) { s.Mounts[0].Target = "/" }, "mounts[0].target"},
		{"target elsewhere", func(s *Spec) { s.Mounts[0].Target = "/etc" }, "mounts[0].target"},
		{"target at the top", func(s *Spec) { s.Mounts[0].Target = "/workspaces" }, ""},
		{"target deep in the image", func(s *Spec) { s.Mounts[0].Target = "/usr/local/src/a" }, ""},
		{"target in /etc", func(s *Spec) { s.Mounts[0].Target = "/etc/app" }, ""},
		{"target is all programs", func(s *Spec) { s.Mounts[0].Target = "/usr/bin" }, "mounts[0].target"},
		{"target in a link of every box", func(s *Spec) { s.Mounts[0].Target = "/var/run/a" }, "mounts[0].target"},
		{"target beside boxd's own", func(s *Spec) { s.Mounts[0].Target = "/var/lib/boxd/x" }, "mounts[0].target"},
		{"target above boxd's own", func(s *Spec) { s.Mounts[0].Target = "/var/lib" }, "mounts[0].target"},
		{"target among the processes", func(s *Spec) { s.Mounts[0].Target = "/proc/1" }, "mounts[0].target"},
		{"target in /run", func(s *Spec) { s.Mounts[0].Target = "/run/a" }, "mounts[0].target"},
		{"target is a skill", func(s *Spec) { s.Mounts[0].Target = SkillsDir + "/a" }, "mounts[0].target"},
		{"target above a root", func(s *Spec) { s.Mounts[0].Target = "/home" }, "mounts[0].target"},
		{"target upwards", func(s *Spec) { s.Mounts[0].Target = "/workspace/../etc" }, "mounts[0].target"},
		{"target over the managed workspace", func(s *Spec) { s.Mounts[0].Target = Workspace }, "mounts[0].target"},
		{"target twice", func(s *Spec) { s.Mounts[0].Target = s.Mounts[1].Target }, "mounts[1].target"},
		{"another user", func(s *Spec) { s.User = User{"user", "/home/user"} }, ""},
		{"root's home", func(s *Spec) { s.User = User{"_u-1", "/root"} }, ""},
		{"a mount in its home", func(s *Spec) { s.User, s.Mounts[0].Target = User{"user", "/home/user"}, "/home/user/in" }, ""},
		{"a mount in another's home", func(s *Spec) { s.User, s.Mounts[0].Target = User{"user", "/home/user"}, "/home/users" }, ""},
		{"a user without a name", func(s *Spec) { s.User = User{"", "/home/user"} }, "user_name"},
		{"a user called root", func(s *Spec) { s.User = User{"root", "/root"} }, "user_name"},
		{"a user called nobody", func(s *Spec) { s.User = User{"nobody", "/root"} }, "user_name"},
		{"a name of two fields", func(s *Spec) { s.User = User{"u:x", "/root"} }, "user_name"},
		{"a name of two lines", func(s *Spec) { s.User = User{"u\nroot", "/root"} }, "user_name"},
		{"a number", func(s *Spec) { s.User = User{"0", "/root"} }, "user_name"},
		{"a long name", func(s *Spec) { s.User = User{strings.Repeat("u", 33), "/root"} }, "user_name"},
		{"no home", func(s *Spec) { s.User = User{"user", ""} }, "home"},
		{"home is the root", func(s *Spec) { s.User = User{"user", "/"} }, "home"},
		{"home in /etc", func(s *Spec) { s.User = User{"user", "/etc"} }, "home"},
		{"home above all", func(s *Spec) { s.User = User{"user", "/home"} }, "home"},
		{"home of no name", func(s *Spec) { s.User = User{"user", "/home/"} }, "home"},
		{"home upwards", func(s *Spec) { s.User = User{"user", "/home/.."} }, "home"},
		{"home by detours", func(s *Spec) { s.User = User{"user", "/workspace/.."} }, "home"},
		{"home two levels below", func(s *Spec) { s.User = User{"user", "/home/a/b"} }, "home"},
		{"home of two fields", func(s *Spec) { s.User = User{"user", "/home/a:b"} }, "home"},
		{"home of two lines", func(s *Spec) { s.User = User{"user", "/home/a\nroot:x:0:0"} }, "home"},
		{"home beside /root", func(s *Spec) { s.User = User{"user", "/roots"} }, "home"},
		{"owner by another than root", func(s *Spec) { s.Mounts[1].Owner = 1 }, "mounts[1].owner"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := valid()
			tc.spoil(&s)
			err := s.Validate()
			refusal, ok := errors.AsType[*Refusal](err)
			switch {
			case tc.want == "" && err != nil:
				t.Fatal(err)
			case tc.want != "" && (!ok || refusal.Field != tc.want || refusal.Allowed == ""):
				t.Fatalf("%v, want a refusal of %s", err, tc.want)
			}
		})
	}
}

func mounts(n int) []Mount {
	list := make([]Mount, n)
	for i := range list {
		list[i] = Mount{Source: "/x", Target: "/mnt/" + strings.Repeat("a", i+1)}
	}
	return list
}

func TestWithinComparesPathComponents(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		path, dir string
		want      bool
	}{
		{"/a", "/a", true},
		{"/a/b", "/a", true},
		{"/ab", "/a", false},
		{"/a", "/a/b", false},
		{"/", "/", true},
		{"/a", "/", true},
		{"/", "/a", false},
	} {
		if got := Within(tc.path, tc.dir); got != tc.want {
			t.Errorf("Within(%q, %q) = %v", tc.path, tc.dir, got)
		}
	}
}

// A valid specification never mounts outside the roots, and its sources are clean paths.
func FuzzSpecValidate(f *testing.F) {
	s := valid()
	f.Add(s.Key, s.Hostname, s.Mounts[0].Source, s.Mounts[0].Target, s.Mounts[1].Target, uint32(0), uint32(0), true)
	f.Add(s.Key, "x", "/", "/workspace/../etc", "/tmp", uint32(1), uint32(2), false)
	f.Add(s.Key, "x", "/a//b", "/workspace/", "/opt/./x", uint32(0), uint32(2), false)
	f.Add(s.Key, "x", "/a", "/workspace/\x00/../../etc", "/data/..", uint32(0), uint32(2), false)
	f.Fuzz(func(t *testing.T, key, hostname, source, one, two string, uid, owner uint32, managed bool) {
		s := valid()
		s.Key, s.Hostname, s.Caller.UID, s.ManagedWork = key, hostname, uid, managed
		s.Mounts = []Mount{{Source: source, Target: one, Owner: owner}, {Source: source, Target: two, Writable: true}}
		if s.Validate() != nil {
			return
		}
		for _, m := range s.Mounts {
			if path.Clean(m.Source) != m.Source || !path.IsAbs(m.Source) || strings.Contains(m.Source, "\x00") {
				t.Errorf("source %q is valid", m.Source)
			}
			first, _, _ := strings.Cut(strings.TrimPrefix(m.Target, "/"), "/")
			if slices.Contains([]string{"", "bin", "dev", "drives", "lib", "lib64", "proc", "run", "sbin", "skills", "sys"}, first) || path.Clean(m.Target) != m.Target || strings.Contains(m.Target, "\x00") {
				t.Errorf("target %q is valid", m.Target)
			}
			if managed && m.Target == Workspace {
				t.Error("a mount hides the managed workspace")
			}
		}
		if one == two || owner != 0 && uid != 0 || strings.ContainsAny(s.Key+s.Hostname, "/.\n\x00") {
			t.Errorf("%+v is valid", s)
		}
	})
}

func TestStepErrorsKeepTheirReason(t *testing.T) {
	t.Parallel()
	for step := StepNone; step <= StepUser; step++ {
		if name := step.String(); name == "" || strings.HasPrefix(name, "step ") {
			t.Errorf("step %d has no name", step)
		}
	}
	if got := (StepUser + 1).String(); !strings.HasPrefix(got, "step ") {
		t.Errorf(`a step after the last is %q, want got starting with "step "`, got)
	}
	long := &StepError{Step: StepMount, Item: strings.Repeat("é", 100), Errno: 2}
	if text := long.Error(); len(text) > 160 || !strings.HasPrefix(text, `mount "é`) || !strings.HasSuffix(text, "no such file or directory") {
		t.Errorf("text = %q, want len(text) <= 160 and text starting with `mount \"é` and text ending with \"no such file or directory\"",
			text)
	}
	refused := &StepError{Step: StepValidate, Refused: &Refusal{"tmp", "1", "more"}}
	if !errors.As(refused, new(*Refusal)) || refused.Error() != `validate: tmp = "1": must be more` {
		t.Errorf("refused = %q, want errors.As(refused, new(*Refusal)) and refused == `validate: tmp = \"1\": must be more`",
			refused)
	}
}
