// SPDX-License-Identifier: Apache-2.0

package session

import "testing"

func TestVictimOfARecord(t *testing.T) {
	t.Parallel()
	const group = "/box.slice/boxd-boxes.service/owner-0/box-x/work/e7"
	for name, tc := range map[string]struct{ record, want, memcg string }{
		"its own": {"6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/box.slice/boxd-boxes.service/owner-0/box-x/work,task_memcg=" +
			group + ",task=python3,pid=42,uid=1879049192\n SUBSYSTEM=x\n", "python3", "/box.slice/boxd-boxes.service/owner-0/box-x/work"},
		"a name that looks like the rest": {"6,1,2,-;oom-kill:x,task_memcg=" + group + ",task=a,pid=1,b,pid=42,uid=1\n", "a,pid=1,b", ""},
		"another group's":                 {"6,1,2,-;oom-kill:x,task_memcg=" + group + "1,task=a,pid=42,uid=1\n", "", ""},
		"another line":                    {"6,1,2,-;Memory cgroup out of memory: Killed process 42 (python3)\n", "", ""},
		"said by a program":               {"12,1,2,-;x ;oom-kill\n", "", ""},
		"nothing":                         {"", "", ""},
	} {
		if got, memcg := victimOf([]byte(tc.record), group); got != tc.want || memcg != tc.memcg {
			t.Errorf("%s: %q by %q, want %q by %q", name, got, memcg, tc.want, tc.memcg)
		}
	}
}
