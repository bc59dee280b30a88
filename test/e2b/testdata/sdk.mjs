// SPDX-License-Identifier: Apache-2.0

// What programs do with the SDK of E2B. Each step prints "ok NAME", or "FAILED NAME" and why.
import assert from 'node:assert/strict'
import { Sandbox, CommandExitError, FileNotFoundError, NotFoundError, TimeoutError, InvalidArgumentError, AuthenticationError } from 'e2b'

const steps = []
const step = (name, run) => steps.push([name, run])
const pause = ms => new Promise(resolve => setTimeout(resolve, ms))
async function until(what, test) {
  for (let i = 0; i < 1800; i++) {
    if (await test()) return
    await pause(50)
  }
  throw new Error('never: ' + what)
}

let sbx
step('create', async () => {
  sbx = await Sandbox.create({ metadata: { purpose: 'a b&c' }, envs: { X: '1' }, timeoutMs: 600_000 })
  assert.match(sbx.sandboxId, /^[a-z0-9]+$/)
})
step('getInfo', async () => {
  const info = await sbx.getInfo()
  assert.equal(info.state, 'running')
  assert.deepEqual(info.metadata, { purpose: 'a b&c' })
  assert.ok(info.endAt - Date.now() > 500_000)
})
step('isRunning', async () => assert.equal(await sbx.isRunning(), true))
step('setTimeout', async () => {
  await sbx.setTimeout(900_000)
  assert.ok((await sbx.getInfo()).endAt - Date.now() > 800_000)
})
step('list', async () => {
  const pages = Sandbox.list({ query: { metadata: { purpose: 'a b&c' } } })
  assert.deepEqual((await pages.nextItems()).map(s => s.sandboxId), [sbx.sandboxId])
  assert.equal(pages.hasNext, false)
})
step('list pages', async () => {
  const more = await Promise.all([1, 2, 3].map(() => Sandbox.create({ metadata: { n: 'page' } })))
  const pages = Sandbox.list({ query: { metadata: { n: 'page' } }, limit: 2 })
  const found = []
  while (pages.hasNext) found.push(...(await pages.nextItems()).map(s => s.sandboxId))
  assert.deepEqual(found.sort(), more.map(s => s.sandboxId).sort())
  await Promise.all(more.map(s => s.kill()))
})
step('connect', async () => {
  const again = await Sandbox.connect(sbx.sandboxId)
  assert.equal((await again.commands.run('echo again')).stdout, 'again\n')
})
step('getMetrics', async () => assert.ok(Array.isArray(await sbx.getMetrics())))
step('getHost', async () => assert.match(sbx.getHost(8000), new RegExp('^8000-' + sbx.sandboxId + '\\.')))
step('wrong key', async () => assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), AuthenticationError))

step('commands.run', async () => {
  const r = await sbx.commands.run('echo out $X $Y; echo err >&2', { envs: { Y: '2' }, cwd: '/tmp' })
  assert.deepEqual([r.exitCode, r.stdout, r.stderr], [0, 'out 1 2\n', 'err\n'])
})
step('commands.run in its directory', async () => assert.equal((await sbx.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n'))
step('commands.run in none', async () => assert.rejects(sbx.commands.run('pwd', { cwd: '/nowhere' }), InvalidArgumentError))
step('commands.run with a status', async () => assert.rejects(sbx.commands.run('exit 3'), e => e instanceof CommandExitError && e.exitCode === 3))
step('commands.run for too long', async () => assert.rejects(sbx.commands.run('sleep 100', { timeoutMs: 500 }), TimeoutError))
step('commands.run callbacks', async () => {
  let out = ''
  await sbx.commands.run('for i in 1 2 3; do echo $i; sleep 0.05; done', { onStdout: d => { out += d } })
  assert.equal(out, '1\n2\n3\n')
})
step('commands.run as root', async () => {
  const root = { user: 'root' }
  assert.equal((await sbx.commands.run('id -u; echo $HOME; pwd', root)).stdout, '0\n/root\n/root\n')
  await sbx.commands.run('mkdir -m 700 /opt/mine; echo mine > /opt/mine/file; echo tool > /usr/local/bin/of-root; chmod 755 /usr/local/bin/of-root', root)
  assert.equal(await sbx.files.read('/opt/mine/file', root), 'mine\n')
  await sbx.files.write('/opt/mine/other', 'by the SDK', root)
  await sbx.files.write('in-home', 'relative', root)
  assert.equal((await sbx.commands.run('stat -c %U /opt/mine/other; cat /opt/mine/other /root/in-home', root)).stdout, 'root\nby the SDKrelative')
  assert.equal((await sbx.commands.run('cat /opt/mine/file || echo closed; id -u', { user: 'user' })).stdout, 'closed\n1000\n')
  await assert.rejects(sbx.files.read('/opt/mine/file'))
})
step('commands.run as nobody', async () => assert.rejects(sbx.commands.run('true', { user: 'stranger' }), AuthenticationError))
step('commands.sendStdin', async () => {
  const cat = await sbx.commands.run('cat', { background: true, stdin: true })
  await sbx.commands.sendStdin(cat.pid, 'hello\n')
  if (sbx.commands.closeStdin) await sbx.commands.closeStdin(cat.pid)
  else await cat.kill()
  assert.equal((await cat.wait().catch(e => e)).stdout, 'hello\n')
})
step('commands.list', async () => {
  const one = await sbx.commands.run('sleep 100', { background: true })
  assert.ok((await sbx.commands.list()).some(p => p.pid === one.pid && p.args.includes('sleep 100')))
  assert.equal(await sbx.commands.kill(one.pid), true)
  await assert.rejects(one.wait(), CommandExitError)
  assert.equal(await sbx.commands.kill(one.pid), false)
})
step('commands.connect', async () => {
  const one = await sbx.commands.run('read line; echo late $line; exit 4', { background: true, stdin: true })
  await one.disconnect()
  let out = ''
  const again = await sbx.commands.connect(one.pid, { onStdout: d => { out += d } })
  await sbx.commands.sendStdin(one.pid, '1\n')
  await assert.rejects(again.wait(), e => e.exitCode === 4)
  assert.equal(out, 'late 1\n')
})
step('commands in the background', async () => {
  await sbx.commands.run('sleep 100 > /dev/null 2>&1 & echo $! > /tmp/background')
  assert.equal((await sbx.commands.run('kill -0 $(cat /tmp/background) && echo lives')).stdout, 'lives\n')
  await sbx.commands.run('kill $(cat /tmp/background)')
})
step('pty', async () => {
  let out = ''
  const pty = await sbx.pty.create({ cols: 90, rows: 30, onData: d => { out += new TextDecoder().decode(d) } })
  await sbx.pty.sendInput(pty.pid, new TextEncoder().encode('stty size\n'))
  await until('the size', () => out.includes('30 90'))
  await sbx.pty.resize(pty.pid, { cols: 70, rows: 20 })
  await sbx.pty.sendInput(pty.pid, new TextEncoder().encode('stty size\n'))
  await until('the other size', () => out.includes('20 70'))
  assert.equal(await sbx.pty.kill(pty.pid), true)
  await pty.wait().catch(() => {})
})

step('files.write', async () => {
  const info = await sbx.files.write('dir/a.txt', 'hello')
  assert.deepEqual([info.name, info.type, info.path.endsWith('/dir/a.txt')], ['a.txt', 'file', true])
  assert.equal(await sbx.files.read('dir/a.txt'), 'hello')
})
step('files.write bytes', async () => {
  const bytes = new Uint8Array(3_000_000).map((_, i) => i * 7)
  await sbx.files.write('/tmp/bytes', bytes.buffer)
  assert.deepEqual(Buffer.from(await sbx.files.read('/tmp/bytes', { format: 'bytes' })), Buffer.from(bytes))
})
step('files.write many', async () => {
  const infos = await sbx.files.write([{ path: 'many/1', data: 'a' }, { path: '/tmp/many/2', data: new Blob(['b']) }])
  assert.deepEqual(infos.map(i => i.name), ['1', '2'])
  assert.equal((await sbx.commands.run('cat many/1 /tmp/many/2')).stdout, 'ab')
})
step('files.read stream', async () => {
  let text = ''
  for await (const part of await sbx.files.read('dir/a.txt', { format: 'stream' })) text += Buffer.from(part).toString()
  assert.equal(text, 'hello')
})
step('files.read nothing', async () => assert.rejects(sbx.files.read('nowhere'), e => e instanceof NotFoundError || e instanceof FileNotFoundError))
step('files.exists', async () => assert.deepEqual([await sbx.files.exists('dir/a.txt'), await sbx.files.exists('nowhere')], [true, false]))
step('files.getInfo', async () => {
  await sbx.commands.run('ln -sfn dir/a.txt link; chmod 640 dir/a.txt')
  const info = await sbx.files.getInfo('dir/a.txt')
  assert.deepEqual([info.type, info.size, info.mode, info.permissions], ['file', 5, 0o640, '-rw-r-----'])
  const link = await sbx.files.getInfo('link')
  assert.deepEqual([link.type, link.mode], ['file', 0o640])
  assert.ok(link.symlinkTarget.endsWith('/dir/a.txt') && link.symlinkTarget.startsWith('/'))
})
step('files.list', async () => {
  assert.deepEqual((await sbx.files.list('dir')).map(e => e.name), ['a.txt'])
  assert.ok((await sbx.files.list('.', { depth: 2 })).some(e => e.path.endsWith('/dir/a.txt')))
  await assert.rejects(sbx.files.list('nowhere'), e => e instanceof NotFoundError || e instanceof FileNotFoundError)
  await assert.rejects(sbx.files.list('dir/a.txt'), InvalidArgumentError)
})
step('files.makeDir', async () => assert.deepEqual([await sbx.files.makeDir('new/dir'), await sbx.files.makeDir('new/dir')], [true, false]))
step('files.rename', async () => {
  const info = await sbx.files.rename('dir/a.txt', 'new/dir/b.txt')
  assert.equal(info.name, 'b.txt')
  assert.equal(await sbx.files.read('new/dir/b.txt'), 'hello')
})
step('files.remove', async () => {
  await sbx.files.remove('new')
  assert.equal(await sbx.files.exists('new'), false)
})
step('files.watchDir', async () => {
  const seen = []
  const watch = await sbx.files.watchDir('dir', e => seen.push(e.type + ' ' + e.name), { recursive: true })
  await sbx.commands.run('mkdir dir/sub')
  await until('a directory', () => seen.includes('create sub'))
  await sbx.commands.run('echo x > dir/sub/f && rm dir/sub/f')
  await until('its files', () => seen.includes('create sub/f') && seen.includes('write sub/f') && seen.includes('remove sub/f'))
  await watch.stop()
})
step('downloadUrl', async () => {
  await sbx.files.write('u.txt', 'by address')
  const fetched = await fetch(await sbx.downloadUrl('u.txt'))
  assert.equal(await fetched.text(), 'by address')
  const over = await fetch(await sbx.downloadUrl('u.txt', { useSignatureExpiration: -5 }))
  assert.equal(over.status, 401)
  assert.equal((await over.json()).message, 'signature is already expired')
})
step('uploadUrl', async () => {
  const form = new FormData()
  form.append('file', new Blob(['by form']), 'ignored')
  const sent = await fetch(await sbx.uploadUrl('form.txt', { useSignatureExpiration: 100 }), { method: 'POST', body: form })
  assert.equal(sent.status, 200)
  assert.equal(await sbx.files.read('form.txt'), 'by form')
})
step('kill', async () => {
  assert.equal(await sbx.kill(), true)
  assert.equal(await sbx.isRunning(), false)
  assert.equal(await Sandbox.kill(sbx.sandboxId), false)
})

for (const [name, run] of steps) {
  try {
    await run()
    console.log('ok ' + name)
  } catch (e) {
    console.log('FAILED ' + name + ': ' + (e.stack || e))
    if (name === 'create') break
  }
}
process.exit(0)
