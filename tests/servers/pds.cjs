// Runs a PDS and a PLC directory: node pds.cjs FOLDER PDS_PORT PLC_PORT. Both listen on 127.0.0.1 only, which the
// package offers no option for; data is in memory and in temporary folders.
const net = require("net");
const { createRequire } = require("module");

const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (where, ...rest) {
  if (typeof where === "number" && typeof rest[0] !== "string") rest.unshift("127.0.0.1");
  if (typeof where === "object" && where !== null && "port" in where) where = { ...where, host: "127.0.0.1" };
  return listen.call(this, where, ...rest);
};

const [folder, pds, plc] = process.argv.slice(2);
const { TestNetworkNoAppView } = createRequire(`${folder}/package.json`)("@atproto/dev-env");
TestNetworkNoAppView.create({
  plc: { port: Number(plc) },
  pds: { port: Number(pds), hostname: "localhost", inviteRequired: false },
}).then(
  (network) => process.on("SIGTERM", () => network.close().then(() => process.exit(0))),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
