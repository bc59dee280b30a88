// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// requireInBox requires a command in the box: the host must have it in /usr.
func requireInBox(t *testing.T, b *box, argv ...string) {
	t.Helper()
	if r := b.exec(&api.ExecRequest{Argv: append(argv, "--version")}); r.ExitCode == nil || *r.ExitCode != 0 {
		boxtest.Missing(t, "the command "+strings.Join(argv, " ")+" of the host in a box")
	}
}

func TestPipInstallsIntoTheHomeOfTheBox(t *testing.T) {
	b := newBox(t, start(t))
	requireInBox(t, b, "python3", "-m", "pip")
	wheel := boxtest.Wheel("hello_box", "import os\ndef main():\n    print('hello from', os.path.dirname(__file__))\n", "hello-box = hello_box:main")
	for _, option := range []string{"--user", ""} { // without --user, pip does the same if the system directory is not writable
		line := "base64 -d > hello_box-1.0-py3-none-any.whl; python3 -m pip install " + option +
			" --no-index --no-build-isolation --no-warn-script-location ./hello_box-1.0-py3-none-any.whl"
		if r := b.exec(&api.ExecRequest{Command: &line, Stdin: base64.StdEncoding.EncodeToString(wheel)}); r.ExitCode == nil || *r.ExitCode != 0 {
			t.Fatalf("pip install %s: r = %s, want r.ExitCode != nil and *r.ExitCode == 0", option, boxtest.Show(r))
		}
		if got := b.sh("hello-box | sed s/python3[^/]*/python3/; command -v hello-box"); got != "hello from /home/box/.local/lib/python3/site-packages\n/home/box/.local/bin/hello-box\n" {
			t.Errorf(`the installed program prints %q, want "hello from /home/box/.local/lib/python3/site-packages\n/home/box/.local/bin/hello-box\n"`,
				got)
		}
		if got := b.run("hello-box"); got == "" { // found by boxd, not by a shell
			t.Error("the installed program prints nothing")
		}
		b.sh("python3 -m pip uninstall -y hello-box; ! command -v hello-box")
	}
}

func TestNpmInstallsIntoTheHomeOfTheBox(t *testing.T) {
	b := newBox(t, start(t))
	requireInBox(t, b, "npm")
	b.sh(`mkdir hello; cd hello
		echo '{"name": "hello-box", "version": "1.0.0", "bin": {"hello-npm": "cli.js"}}' > package.json
		printf '#!/usr/bin/env node\nconsole.log("hello from", __dirname)\n' > cli.js; chmod +x cli.js`)
	b.sh("npm install -g --offline --no-audit --no-fund --install-links=false ./hello") // npm 9 copies it otherwise
	if got := b.sh("hello-npm; command -v hello-npm; npm prefix -g"); got != "hello from /workspace/hello\n/home/box/.local/bin/hello-npm\n/home/box/.local\n" {
		t.Errorf(`the installed program prints %q, want "hello from /workspace/hello\n/home/box/.local/bin/hello-npm\n/home/box/.local\n"`,
			got)
	}
	// A package from an archive is unpacked there, and does not need its source directory.
	b.sh("npm uninstall -g hello-box; cd /tmp; npm pack /workspace/hello; npm install -g --offline --no-audit --no-fund ./hello-box-1.0.0.tgz; rm -r /workspace/hello")
	if got := b.run("hello-npm"); got != "hello from /home/box/.local/lib/node_modules/hello-box\n" {
		t.Errorf(`the installed program prints %q, want "hello from /home/box/.local/lib/node_modules/hello-box\n"`, got)
	}
}
