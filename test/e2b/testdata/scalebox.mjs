// SPDX-License-Identifier: Apache-2.0

// What Refly does with the SDK of Scalebox. Each step prints "ok NAME", or "FAILED NAME" and why.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { Sandbox } from '@scalebox/sdk'

const steps = []
const step = (name, run) => steps.push([name, run])
// What an older version lacks: it signs no addresses, and knows no objectStorage.
const newer = (name, run) => process.env.OLDER_SDK || step(name, run)

let sbx
step('create', async () => {
  sbx = await Sandbox.create('code-interpreter', { timeoutMs: 300_000, metadata: { a: 'b' }, envs: { X: '1' } })
  assert.match(sbx.sandboxId, /^[a-z0-9]+$/)
})
step('isRunning', async () => assert.equal(await sbx.isRunning(), true))
step('getInfo', async () => {
  const info = await sbx.getInfo()
  assert.equal(info.status, 'running')
  assert.ok(info.timeoutAt - Date.now() > 200_000)
})
step('connect', async () => {
  const again = await Sandbox.connect(sbx.sandboxId)
  assert.equal((await again.commands.run('echo again')).stdout, 'again\n')
})
step('setTimeout', async () => {
  await sbx.setTimeout(900_000)
  assert.ok((await sbx.getInfo()).timeoutAt - Date.now() > 800_000)
})
step('commands.run', async () => {
  const r = await sbx.commands.run('echo out $X; echo err >&2; exit 3').catch(e => e)
  assert.deepEqual([r.exitCode, r.stdout, r.stderr], [3, 'out 1\n', 'err\n'])
})
step('files', async () => {
  await sbx.files.write('d/a.txt', 'hello')
  assert.equal(await sbx.files.read('d/a.txt'), 'hello')
  assert.equal(await sbx.files.read((await sbx.commands.run('pwd')).stdout.trim() + '/d/a.txt'), 'hello')
  assert.deepEqual((await sbx.files.list('d')).map(e => e.name), ['a.txt'])
})
newer('downloadUrl', async () => {
  const dir = (await sbx.commands.run('pwd')).stdout.trim()
  const got = await fetch(await sbx.downloadUrl(dir + '/d/a.txt'))
  assert.equal(await got.text(), 'hello')
})
newer('uploadUrl', async () => {
  const form = new FormData()
  form.append('file', new Blob(['sent']), 'u.txt')
  const dir = (await sbx.commands.run('pwd')).stdout.trim()
  assert.equal((await fetch(await sbx.uploadUrl(dir + '/u.txt'), { method: 'POST', body: form })).status, 200)
  assert.equal((await sbx.commands.run('echo " and changed" >> u.txt; cat u.txt')).stdout, 'sent and changed\n')
})
step('runCode', async () => {
  const r = await sbx.runCode('print("out")\n1 + 1', { language: 'python' })
  assert.deepEqual([r.text.trim(), r.exitCode, r.logs.stdout.trim()], ['2', 0, 'out'])
})
step('runCode with a chart', async () => {
  const code = `display({'e2b/chart': {'type': 'bar', 'title': 'T', 'y_label': 'n', 'elements': [{'label': 'a', 'group': 'g', 'value': 7}]}}, raw=True)`
  const { chart } = (await sbx.runCode(code, { language: 'python' })).results.find(r => r.chart)
  assert.deepEqual([chart.type, chart.title, chart.yLabel, chart.elements], ['bar', 'T', 'n', [{ label: 'a', group: 'g', value: '7' }]])
})
step('runCode with an error', async () => {
  const r = await sbx.runCode('1 / 0', { language: 'python' })
  assert.deepEqual([r.error.name, r.exitCode], ['ZeroDivisionError', 1])
})
const bucket = uri => ({ objectStorage: { uri, mountPoint: '/mnt/bucket', accessKey: 'a', secretKey: 's', region: 'r', endpoint: 'https://s3.example.org' } })
newer('objectStorage', async () => {
  const other = await Sandbox.create('code-interpreter', bucket('s3://bucket/runs/7'))
  assert.equal((await other.commands.run('cat /drives/team/results/numbers')).stdout, 'one\n')
  assert.notEqual((await other.commands.run('touch /drives/team/results/x').catch(e => e)).exitCode, 0)
  await other.kill()
})
newer('objectStorage of no drive', async () => assert.rejects(Sandbox.create('code-interpreter', bucket('s3://bucketful')), /object_storage.uri/))

// What Refly does with a project: a sandbox of its pool gets the project's files and a directory for what it makes, executes, lists
// the files that it made, and is used again with the next version of them.
const files = '/drives/team/results'
const versions = async (from, version) => {
  await from.commands.run(`mkdir -p output/${version}`)
  const r = await from.runCode(`import os\nn = len(open('${files}/numbers').readlines())\nopen('output/${version}/count', 'w').write(str(n))\nn`, { language: 'python' })
  assert.equal(r.exitCode, 0, JSON.stringify(r.error))
  assert.deepEqual((await from.files.list(`output/${version}`)).map(e => e.name), ['count'])
  assert.equal(await from.files.read(`output/${version}/count`), r.text.trim())
  return Number(r.text)
}
let pooled
newer('a sandbox of the pool with the files of a project', async () => {
  pooled = (await Sandbox.create('code-interpreter', { ...bucket('s3://bucket/project'), timeoutMs: 300_000 })).sandboxId
  assert.equal((await (await Sandbox.connect(pooled)).commands.run(`cat ${files}/numbers`)).stdout, 'one\n')
})
newer('an execution with a version, and the files it made', async () => assert.equal(await versions(await Sandbox.connect(pooled), 'v1'), 1))
newer('the version is switched', async () => {
  // which the operator's side does: boxctl drives fill and switch
  execFileSync('/bin/sh', ['-ec', process.env.NEXT_VERSION, 'sh', pooled])
  const again = await Sandbox.connect(pooled)
  assert.equal((await again.commands.run(`cat ${files}/numbers`)).stdout, 'one\ntwo\n')
})
newer('the pool gives it out again', async () => {
  const again = await Sandbox.connect(pooled)
  assert.equal(await again.isRunning(), true)
  assert.ok((await again.getInfo()).timeoutAt > Date.now())
  await again.setTimeout(600_000)
  assert.equal(await versions(again, 'v2'), 2)
  assert.deepEqual((await again.files.list('output')).map(e => e.name).sort(), ['v1', 'v2'])
  await again.kill()
  await assert.rejects(Sandbox.connect(pooled))
})
step('kill', async () => {
  await sbx.kill()
  assert.equal(await sbx.isRunning(), false)
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
