// SPDX-License-Identifier: Apache-2.0

// Methods of the SDK of E2B that sdk.mjs has not: what works of them, and what is refused. Each step prints "ok NAME", or
// "FAILED NAME" and why.
import assert from 'node:assert/strict'
import { ALL_TRAFFIC, E2B, Sandbox, Secret, Template, Volume } from 'e2b'

const steps = []
const step = (name, run) => steps.push([name, run])
const refused = (name, run, why = /not served by boxd: (?!see)/) => step(name, () => assert.rejects(async () => run(), why))

let sbx
step('create', async () => { sbx = await Sandbox.create({ timeoutMs: 600_000 }) })
step('getFullInfo', async () => assert.equal((await Sandbox.getFullInfo(sbx.sandboxId)).state, 'running'))
step('a client of its own', async () => assert.equal((await new E2B({ apiKey: process.env.E2B_API_KEY }).Sandbox.list().nextItems()).length, 1))

const at = '/tmp/repository'
step('git.init', () => sbx.git.init(at, { initialBranch: 'main' }))
step('git.configureUser', () => sbx.git.configureUser('A', 'a@example.org'))
step('git.setConfig', async () => {
  await sbx.git.setConfig('some.key', 'value')
  assert.equal(await sbx.git.getConfig('some.key'), 'value')
})
step('git.commit', async () => {
  await sbx.files.write(at + '/f', '1')
  await sbx.git.add(at)
  assert.equal((await sbx.git.status(at)).stagedCount, 1)
  await sbx.git.commit(at, 'first')
  assert.equal((await sbx.git.status(at)).isClean, true)
})
step('git branches', async () => {
  await sbx.git.createBranch(at, 'other')
  await sbx.git.checkoutBranch(at, 'main')
  assert.deepEqual((await sbx.git.branches(at)).branches.sort(), ['main', 'other'])
  await sbx.git.deleteBranch(at, 'other')
})
step('git remotes', async () => {
  await sbx.commands.run('git init --bare /tmp/bare')
  await sbx.git.remoteAdd(at, 'origin', '/tmp/bare')
  assert.equal(await sbx.git.remoteGet(at, 'origin'), '/tmp/bare')
  await sbx.git.push(at, { remote: 'origin', branch: 'main' })
  await sbx.git.pull(at)
  await sbx.git.clone('/tmp/bare', { path: '/tmp/clone', branch: 'main' })
  assert.equal(await sbx.files.read('/tmp/clone/f'), '1')
})
step('git.restore', async () => {
  await sbx.files.write(at + '/f', '2')
  await sbx.git.restore(at, { paths: ['f'] })
  assert.equal(await sbx.files.read(at + '/f'), '1')
})
step('git.reset', async () => {
  await sbx.files.write(at + '/f', '2')
  await sbx.git.reset(at, { mode: 'hard' })
  assert.equal(await sbx.files.read(at + '/f'), '1')
})
step('git.dangerouslyAuthenticate', () => sbx.git.dangerouslyAuthenticate({ username: 'u', password: 'p' }))

step('uploads of all kinds', async () => {
  await sbx.files.write('stream', new Blob(['s']).stream())
  await sbx.files.write('octets', 'o', { useOctetStream: true })
  await sbx.files.write('zipped', 'z', { gzip: true })
  await sbx.files.writeFiles([{ path: 'one', data: '1' }])
  assert.equal((await sbx.commands.run('cat stream octets zipped one')).stdout, 'soz1')
  await sbx.files.write('with', 'm', { metadata: { key: 'value' } })
  assert.deepEqual((await sbx.files.getInfo('with')).metadata, { key: 'value' })
})
step('downloads of all kinds', async () => {
  assert.equal(await (await sbx.files.read('one', { format: 'blob' })).text(), '1')
  assert.equal(await sbx.files.read('one', { gzip: true }), '1')
})
step('pty.connect', async () => {
  const pty = await sbx.pty.create({ cols: 80, rows: 24, onData: () => {} })
  await pty.disconnect()
  const again = await sbx.pty.connect(pty.pid, { onData: () => {} })
  assert.equal(await sbx.pty.kill(pty.pid), true)
  await again.wait().catch(() => {})
})
step('pause', async () => {
  await sbx.files.write('kept', 'k')
  assert.deepEqual([await sbx.pause({ keepMemory: false }), await sbx.pause({ keepMemory: false }), await sbx.betaPause({ keepMemory: false })], [true, false, false])
  assert.equal((await Sandbox.list({ query: { state: ['paused'] } }).nextItems()).length, 1)
  sbx = await Sandbox.connect(sbx.sandboxId)
  assert.equal(await sbx.files.read('kept'), 'k')
})

step('templates', async () => {
  assert.deepEqual([await Template.exists('base'), await Template.aliasExists('code-interpreter'), await Template.exists('nowhere')], [true, true, false])
  assert.equal(Template.toDockerfile(Template().fromImage('debian')), 'FROM debian\n')
})
step('Template.toJSON', async () => assert.equal(JSON.parse(await Template.toJSON(Template().fromImage('debian'))).fromImage, 'debian'))
step('Secret.fill and Secret.iamToken', () => assert.ok(Secret.fill('s') && Secret.iamToken('s')))
step('supportsStdinClose', () => assert.equal(sbx.commands.supportsStdinClose, true))
step('there is no MCP gateway', async () => {
  assert.match(sbx.getMcpUrl(), /^https:.*\/mcp$/)
  await assert.rejects(sbx.getMcpToken(), /no such file/)
})
step('a template that is not there', () => assert.rejects(Sandbox.create('nowhere'), /this host has base, code-interpreter-v1/))
refused('Template.build', () => Template.build(Template().fromImage('debian'), 'x'))
refused('Template.buildInBackground', () => Template.buildInBackground(Template().fromImage('debian'), 'x'))
refused('Template.getBuildStatus', () => Template.getBuildStatus({ templateId: 'x', buildId: 'y' }))
refused('Template.assignTags', () => Template.assignTags('x:y', ['z']))
refused('Template.removeTags', () => Template.removeTags('x', ['z']))
refused('Template.getTags', () => Template.getTags('x'))
refused('Volume.create', () => Volume.create('v'))
refused('Volume.connect', () => Volume.connect('v'))
refused('Volume.getInfo', () => Volume.getInfo('v'))
refused('Volume.list', () => Volume.list())
refused('Volume.destroy', () => Volume.destroy('v'))
refused('Secret.create', () => Secret.create('s', 'v'))
refused('Secret.update', () => Secret.update('s', 'v'))
refused('Secret.getInfo', () => Secret.getInfo('s'))
refused('Secret.list', () => Secret.list().nextItems())
refused('Secret.exists', () => Secret.exists('s'))
refused('Secret.destroy', () => Secret.destroy('s'))
refused('createSnapshot', () => sbx.createSnapshot(), /images of memory/)
refused('listSnapshots', () => sbx.listSnapshots().nextItems(), /images of memory/)
refused('deleteSnapshot', () => Sandbox.deleteSnapshot('x'), /images of memory/)
refused('fork', () => sbx.fork(), /images of memory/)
refused('updateNetwork of a box without one', () => sbx.updateNetwork({ allowOut: ['example.org'], denyOut: [ALL_TRAFFIC] }))
refused('create with volumes', () => Sandbox.create({ volumeMounts: { '/x': 'v' } }))
refused('create with mcp', () => Sandbox.create({ mcp: { a: {} } }))
refused('create with network.denyOut', () => Sandbox.create({ network: { denyOut: ['192.0.2.1'] } }))
refused('create with network.rules', () => Sandbox.create({ network: { rules: { 'example.org': [{ transform: { headers: { a: 'b' } } }] } } }))
step('kill', async () => assert.equal(await sbx.kill(), true))

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
