// Node has all that globals.js would add.
export {};
