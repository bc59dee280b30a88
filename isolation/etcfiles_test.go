// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The user of a box is the only one of its name and of its id, and keeps the shell that the image
// gives it.
func TestTheFilesOfUsersHaveOneOfTheNameAndOneOfTheID(t *testing.T) {
	t.Parallel()
	u := User{Name: "user", Home: "/home/user"}
	for name, tc := range map[string]struct{ passwd, group, wantPasswd, wantGroup string }{
		"of nothing": {"", "", "user:x:1000:1000:user:/home/user:/bin/sh\n", "user:x:1000:root\n"},
		"of the host": {
			"root:x:0:0:root:/root:/bin/sh\nbox:x:1000:1000:box:/home/box:/bin/bash\n", "root:x:0:\nbox:x:1000:\n",
			"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/bash\n", "root:x:0:\nuser:x:1000:root\n",
		},
		"of one that has the name": {
			"user:x:7:7::/var:/bin/false\nnode:x:1000:1000::/home/node:\nlast:x:8:8::/:/bin/sh", "user:x:7:node\nnode:x:1000:\nusers:x:100:user\n",
			"last:x:8:8::/:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n", "users:x:100:user\nuser:x:1000:root\n",
		},
		"of one that a program has added to": {
			"user:x:1000:1000:user:/home/user:/bin/sh\nlast:x:8:8::/:/bin/sh\n", "user:x:1000:root,last\nlast:x:8:\n",
			"user:x:1000:1000:user:/home/user:/bin/sh\nlast:x:8:8::/:/bin/sh\n", "user:x:1000:root,last\nlast:x:8:\n",
		},
		"of one that a program has given another number": {"user:x:8:8::/:\n", "user:x:1000:root,last\nlast:x:1000:\n", "user:x:1000:1000:user:/home/user:/bin/sh\n", "user:x:1000:root\n"},
		"of no lines of it": {"\nx\n:::\n", "\n", "\nx\n:::\nuser:x:1000:1000:user:/home/user:/bin/sh\n", "\nuser:x:1000:root\n"},
	} {
		want := []BoxFile{{"passwd", tc.wantPasswd}, {"group", tc.wantGroup}}
		if diff := cmp.Diff(want, u.UserFiles(tc.passwd, tc.group)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
