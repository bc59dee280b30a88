// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/isolation"
)

// Users of the tables below. No host has users with these numbers, so their groups have the same
// numbers.
const (
	ann  = 4242001
	bob  = 4242002
	carl = 4242003 // without a home
)

func homes(uid uint32) string {
	return map[uint32]string{0: "/root", ann: "/home/ann", bob: "/srv/homes/bob"}[uid]
}

const (
	toRead  = "ro"
	toWrite = "rw"
)

// Beginnings of the texts in which a refusal says what is allowed.
const (
	noSystem = "outside system directories"
	ownHome  = "a directory of your own below your home"
	notRoots = "a directory of a user other than root"
	ownedBy  = "a directory owned by uid"
	nothing  = "listed in mounts.allow (empty)"
)

func TestPermitFollowsTheRules(t *testing.T) {
	t.Parallel()
	home, srv := AllowRule{Path: homePath}, AllowRule{Path: "/srv/lend"}
	named := AllowRule{Path: "/srv/named", UID: carl, GID: 77}
	all := []AllowRule{home, srv, named}
	for _, tc := range []struct {
		name    string
		rules   []AllowRule
		path    string
		of      uint32 // owner of the directory, and its group
		caller  uint32
		owner   uint32 // named in the mount
		mode    string
		want    Owner
		refused string
	}{
		{name: "own below home", rules: all, path: "/home/ann/project", of: ann, caller: ann, mode: toWrite, want: mapped(ann)},
		{name: "own far below home", rules: all, path: "/home/ann/a/b/c", of: ann, caller: ann, mode: toRead, want: mapped(ann)},
		{name: "own below a home elsewhere", rules: all, path: "/srv/homes/bob/x", of: bob, caller: bob, mode: toWrite, want: mapped(bob)},
		{name: "home itself", rules: all, path: "/home/ann", of: ann, caller: ann, mode: toRead, refused: ownHome},
		{name: "what contains home", rules: all, path: "/home", of: ann, caller: ann, mode: toRead, refused: ownHome},
		{name: "dot directory", rules: all, path: "/home/ann/.ssh", of: ann, caller: ann, mode: toRead, refused: ownHome},
		{name: "below a dot directory", rules: all, path: "/home/ann/.config/app/data", of: ann, caller: ann, mode: toWrite, refused: ownHome},
		{name: "two dots and more", rules: all, path: "/home/ann/..x", of: ann, caller: ann, mode: toRead, refused: ownHome},
		{name: "dot directory of a project", rules: all, path: "/home/ann/project/.git", of: ann, caller: ann, mode: toWrite, want: mapped(ann)},
		{name: "another's below home", rules: all, path: "/home/ann/shared", of: bob, caller: ann, mode: toRead, refused: ownHome},
		{name: "root's below home", rules: all, path: "/home/ann/mnt", of: 0, caller: ann, mode: toRead, refused: ownHome},
		{name: "another's home", rules: all, path: "/srv/homes/bob/x", of: bob, caller: ann, mode: toRead, refused: ownHome},
		{name: "own in another's home", rules: all, path: "/srv/homes/bob/x", of: ann, caller: ann, mode: toRead, refused: ownHome},
		{name: "a home with this one's name before it", rules: all, path: "/home/anna/x", of: ann, caller: ann, mode: toRead, refused: ownHome},
		{name: "without a home", rules: all, path: "/home/carl/x", of: carl, caller: carl, mode: toRead, refused: ownHome},
		{name: "without a home, relative", rules: all, path: "x", of: carl, caller: carl, mode: toRead, refused: noSystem},

		{name: "listed", rules: all, path: "/srv/lend", of: ann, caller: ann, mode: toWrite, want: mapped(ann)},
		{name: "below a listed one", rules: all, path: "/srv/lend/x/y", of: ann, caller: ann, mode: toWrite, want: mapped(ann)},
		{name: "with a listed one's name before it", rules: all, path: "/srv/lender", of: ann, caller: ann, mode: toRead, refused: ownHome},
		{name: "what contains a listed one", rules: all, path: "/srv", of: ann, caller: ann, mode: toRead, refused: ownHome},
		{name: "reading another's", rules: all, path: "/srv/lend/x", of: bob, caller: ann, mode: toRead, want: Owner{uid: ann, gid: ann, dirGID: bob}},
		{name: "reading root's", rules: all, path: "/srv/lend/x", of: 0, caller: ann, mode: toRead, want: Owner{uid: ann, gid: ann}},
		{name: "writing another's", rules: all, path: "/srv/lend/x", of: bob, caller: ann, mode: toWrite, refused: ownedBy},
		{name: "writing root's", rules: all, path: "/srv/lend/x", of: 0, caller: ann, mode: toWrite, refused: ownedBy},

		{name: "rule with an owner", rules: all, path: "/srv/named/x", of: carl, caller: ann, mode: toWrite, want: Owner{uid: carl, gid: 77, dirGID: carl, Mapped: true}},
		{name: "rule with an owner, for root", rules: all, path: "/srv/named/x", of: carl, caller: 0, mode: toWrite, want: Owner{uid: carl, gid: 77, dirGID: carl, Mapped: true}},
		{name: "rule with an owner wins over a named one", rules: all, path: "/srv/named/x", of: carl, caller: 0, owner: ann, mode: toWrite, want: Owner{uid: carl, gid: 77, dirGID: carl, Mapped: true}},
		{name: "rule with another owner than the directory", rules: all, path: "/srv/named/x", of: ann, caller: ann, mode: toWrite, refused: ownedBy},
		{name: "the first rule that fits counts", rules: []AllowRule{{Path: "/srv/named/mine"}, named}, path: "/srv/named/mine", of: ann, caller: ann, mode: toWrite, want: mapped(ann)},

		{name: "root lends what is somebody's", rules: all, path: "/srv/lend/x", of: ann, caller: 0, mode: toWrite, want: mapped(ann)},
		{name: "root names the owner", rules: all, path: "/srv/lend/x", of: ann, caller: 0, owner: ann, mode: toWrite, want: mapped(ann)},
		{name: "root names another", rules: all, path: "/srv/lend/x", of: ann, caller: 0, owner: bob, mode: toWrite, refused: ownedBy},
		{name: "root lends root's for writing", rules: all, path: "/srv/lend/x", of: 0, caller: 0, mode: toWrite, refused: notRoots},
		{name: "root names another for root's", rules: all, path: "/srv/lend/x", of: 0, caller: 0, owner: ann, mode: toWrite, refused: ownedBy},
		{name: "root lends root's for reading", rules: all, path: "/srv/lend/x", of: 0, caller: 0, mode: toRead, want: Owner{}},
		{name: "root lends its own below its home", rules: all, path: "/root/x", of: 0, caller: 0, mode: toRead, want: Owner{}},
		{name: "and not for writing", rules: all, path: "/root/x", of: 0, caller: 0, mode: toWrite, refused: notRoots},
		{name: "root and the homes of others", rules: []AllowRule{home}, path: "/home/ann/x", of: ann, caller: 0, mode: toRead, refused: ownHome},

		{name: "no rules", path: "/home/ann/x", of: ann, caller: ann, mode: toRead, refused: nothing},
		{name: "no rules, for root", path: "/srv/lend", of: ann, caller: 0, mode: toRead, refused: nothing},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := directory{path: tc.path, uid: tc.of, gid: tc.of, state: "/state", home: homes}
			caller := isolation.Caller{UID: tc.caller, GID: tc.caller}
			got, refusal := d.permit(tc.rules, caller, isolation.Mount{Writable: tc.mode == toWrite, Owner: tc.owner})
			if !strings.HasPrefix(refusal, tc.refused) || (refusal == "") != (tc.refused == "") {
				t.Fatalf("refusal %q, want %q", refusal, tc.refused)
			}
			if refusal == "" && got != tc.want {
				t.Errorf("owner %+v, want %+v", got, tc.want)
			}
		})
	}
}

func mapped(id uint32) Owner { return Owner{uid: id, gid: id, dirGID: id, Mapped: true} }

func TestSystemDirectoriesAreNeverMountSources(t *testing.T) {
	t.Parallel()
	// These stay refused even if every directory is allowed, to its owner and to root.
	rules := []AllowRule{{Path: "/"}}
	paths := []string{
		"/", "/proc", "/proc/1/root", "/sys", "/sys/fs/cgroup", "/dev", "/dev/shm", "/etc", "/etc/ssl/certs", "/boot", "/run", "/run/user/1000",
		"/usr", "/usr/local/share", "/bin", "/sbin", "/lib", "/lib64", "/var", "/var/run", "/var/lib", "/var/lib/boxd", "/var/lib/boxd/workspaces/x",
		"/state", "/state/workspaces", "/somewhere/../etc", "etc", "", "/etc/", "//etc", "/x\x00y",
	}
	for _, path := range paths {
		for _, uid := range []uint32{0, ann} {
			d := directory{path: path, uid: ann, gid: ann, state: "/state", home: homes}
			for _, writable := range []bool{false, true} {
				if _, refusal := d.permit(rules, isolation.Caller{UID: uid, GID: uid}, isolation.Mount{Writable: writable}); !strings.HasPrefix(refusal, noSystem) {
					t.Errorf("%q for uid %d, writable %v: refusal = %q, want refusal starting with noSystem",
						path, uid, writable, refusal)
				}
			}
		}
	}
	for _, path := range []string{"/srv", "/stated", "/statement/x", "/etcetera", "/usr2", "/opt/x", "/var/lib/boxd2", "/var/www", "/mnt", "/tmp/x"} {
		d := directory{path: path, uid: ann, gid: ann, state: "/state", home: homes}
		if _, refusal := d.permit(rules, isolation.Caller{UID: ann, GID: ann}, isolation.Mount{Writable: true}); refusal != "" {
			t.Errorf(`%q: refusal = %q, want ""`, path, refusal)
		}
	}
}

func TestPermitNeverGivesRootsGroup(t *testing.T) {
	t.Parallel()
	d := directory{path: "/srv/lend", uid: ann, gid: ann, home: homes}
	if _, refusal := d.permit([]AllowRule{{Path: "/srv/lend"}}, isolation.Caller{UID: ann, GID: 0}, isolation.Mount{Writable: true}); !strings.HasPrefix(refusal, notRoots) {
		t.Errorf("refusal = %q, want refusal starting with notRoots", refusal)
	}
}

func TestAllowRuleReadsWhatBoxdHandsOver(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in   string
		want AllowRule
		bad  bool
	}{
		{in: "{home}", want: AllowRule{Path: homePath}},
		{in: "/srv/x", want: AllowRule{Path: "/srv/x"}},
		{in: "/srv/x=1500:1501", want: AllowRule{Path: "/srv/x", UID: 1500, GID: 1501}},
		{in: "{home}=1500:1500", want: AllowRule{Path: homePath, UID: 1500, GID: 1500}},
		{in: "/", bad: true},
		{in: "/etc", bad: true},
		{in: "/var", bad: true},
		{in: "/usr/share/x", bad: true},
		{in: "", bad: true},
		{in: "srv/x", bad: true},
		{in: "/srv/../etc", bad: true},
		{in: "/srv/x/", bad: true},
		{in: "/srv/x=", bad: true},
		{in: "/srv/x=1500", bad: true},
		{in: "/srv/x=0:1500", bad: true},
		{in: "/srv/x=1500:0", bad: true},
		{in: "/srv/x=-1:1", bad: true},
		{in: "/srv/x=4294967296:1", bad: true},
		{in: "/srv/x=ann:ann", bad: true},
		{in: "{Home}", bad: true},
	} {
		got, err := parseAllowRule(tc.in)
		if (err != nil) != tc.bad {
			t.Errorf("%q: err = %v, want (err != nil) == %v", tc.in, err, tc.bad)
		} else if err == nil && got != tc.want {
			t.Errorf("%q: got %+v, want an error or got == %+v", tc.in, got, tc.want)
		}
	}
}

func TestAnUnknownUserHasNoHomeDirectory(t *testing.T) {
	t.Parallel()
	if home := homeOf(ann); home != "" {
		t.Errorf(`home = %q, want ""`, home)
	}
}
